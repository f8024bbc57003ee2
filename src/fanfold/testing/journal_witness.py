"""JournalWitness: what a workflow's log really holds, read without the journal's code, so as not to share its bugs."""

from collections.abc import Callable
from typing import Any

import msgspec

from fanfold.protocols import SessionStore

_decode = msgspec.json.Decoder().decode


def meaning_of(output: str) -> str:
    """What a simulated step was asked, from its answer `<prompt> run <number>`."""
    return output.rpartition(" run ")[0]


class RecordedThread(msgspec.Struct):
    """Turns of a step under way."""

    meaning: str
    turns: int = 0
    calls: set[str] = msgspec.field(default_factory=set[str])
    results: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Outputs of tools by call id."""
    has_failed: bool = False


class JournalWitness:
    """Steps are known by task id here, for the simulated ones have one each."""

    def __init__(
        self, store: SessionStore, log: str, broken: Callable[[str], None], removed: Callable[[], None]
    ) -> None:
        self._store = store
        self._log = log
        self._broken = broken
        self._removed = removed
        self._records: list[bytes] = []
        self.last_successes: dict[str, dict[str, Any]] = {}
        """As `successes`, but still there after the log was removed."""
        self._forget()

    def _forget(self) -> None:
        self._records = []
        self.successes: dict[str, dict[str, Any]] = {}
        """The newest success of each step."""
        self.ends: dict[str, dict[str, Any]] = {}
        """The newest end of each step, success or failure."""
        self.threads: dict[str, RecordedThread] = {}
        self.tokens = 0
        """Spent by all that is recorded."""
        self._meanings: dict[str, str] = {}

    @property
    def is_empty(self) -> bool:
        return not self._records

    def has(self, task_id: str, meaning: str) -> bool:
        """The newest recorded success of the step is of that very meaning."""
        found = self.successes.get(task_id)
        return found is not None and meaning_of(found["output"]) == meaning

    async def look(self, *, again: bool = False) -> int:
        """Read what is new, and see that the newest known record, or `again` each of them, is still as it was; returns
        how many records are new."""
        known = self._records
        ahead = 0 if again or not known else len(known) - 1
        found = await self._store.read(self._log, ahead)
        if known and not found:
            self._removed()
            self._forget()
            return 0
        if list(found[: len(known) - ahead]) != known[ahead:]:
            self._broken(f"a record is gone or another one: the first {len(known)} are not those that were written")
            return 0
        new = found[len(known) - ahead :]
        for data in new:
            self._records.append(data)
            self._take(len(self._records), _decode(data))
        return len(new)

    def _take(self, number: int, record: dict[str, Any]) -> None:
        kind = record["k"]
        if (kind == "open") != (number == 1):
            self._broken(f"record {number} is of the kind '{kind}'")
        if kind == "step":
            self._take_end(record, record["o"])
        elif kind == "facts":
            self._take_facts(record["at"].rpartition("/")[2], record)

    def _take_end(self, record: dict[str, Any], outcome: dict[str, Any]) -> None:
        task_id = outcome["task_id"]
        if outcome["success"]:
            self._know(record["id"], meaning_of(outcome["output"]))
            if self.has(task_id, meaning_of(outcome["output"])):
                self._broken(f"the success of {task_id} is recorded twice")
        thread = self.threads.get(task_id)
        self.tokens += record.get("u", outcome.get("usage", {})).get("total_tokens", 0)
        self.ends[task_id] = outcome
        if outcome["success"]:
            self.successes[task_id] = self.last_successes[task_id] = outcome
            self.threads.pop(task_id, None)
        elif thread is not None:
            if thread.meaning != self._meanings.get(record["id"]):
                del self.threads[task_id]
            else:
                thread.has_failed = True

    def _take_facts(self, task_id: str, record: dict[str, Any]) -> None:
        facts: list[dict[str, Any]] = record["facts"]
        if facts[0]["seq"] == 1:
            meaning = facts[0]["payload"]["text"]
            self._know(record["id"], meaning)
            self.threads[task_id] = RecordedThread(meaning)
        thread = self.threads.get(task_id)
        if thread is None or self._meanings.get(record["id"]) != thread.meaning:
            self._broken(f"facts of {task_id} follow none that they could follow")
            return
        thread.has_failed = False
        for fact in facts:
            payload = fact["payload"]
            if fact["type"] == "tool.result":
                if payload["toolCallId"] in thread.results:
                    self._broken(f"the result of {task_id}'s call {payload['toolCallId']} is recorded twice")
                thread.results[payload["toolCallId"]] = payload["output"]
            elif fact["type"] == "model.turn":
                thread.turns += 1
                thread.calls |= {call["id"] for call in [payload.get("call"), *payload.get("also", ())] if call}
                self.tokens += payload.get("usage", {}).get("total_tokens", 0)

    def _know(self, identity: str, meaning: str) -> None:
        if self._meanings.setdefault(identity, meaning) != meaning:
            self._broken(f"'{meaning}' and '{self._meanings[identity]}' are recorded as the same step")
