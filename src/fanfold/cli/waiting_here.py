"""All that waits for a person in the current directory's workspace: in running processes, and parked."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from fanfold.cli.cells import cut, one_line
from fanfold.cli.console import Console
from fanfold.cli.endings import NotThereError
from fanfold.cli.opening import open_store
from fanfold.cli.runs_here import run_files
from fanfold.control.client import LiveServer, look
from fanfold.control.parked import parked_in, parked_steps
from fanfold.control.parked_calls import Parked
from fanfold.control.parked_runs import parked_agents
from fanfold.control.waiting import Waiting, matching
from fanfold.control.wire import LiveSession, Seen
from fanfold.nearest import did_you_mean

_MOST_CANDIDATES = 10
_LONGEST_HELP = 200
_MOST_NOTES = 3
_LONGEST_LABEL = 60


class LiveOne(msgspec.Struct, frozen=True):
    """A session that can be asked."""

    server: LiveServer
    session: LiveSession


class Here(msgspec.Struct, frozen=True):
    waiting: list[Waiting]
    """Oldest first, as far as that is known."""
    live: list[LiveOne]
    answered: dict[str, str]
    """What has its answer already, by id, and what that was."""
    notes: list[str]
    """What could not be seen, and why."""

    def find(self, typed: str) -> Waiting:
        """The one that `typed` means.

        Raises:
            NotThereError: nothing waits under that id.
            click.UsageError: it may mean several.
        """
        found = matching(self.waiting, typed) or self._of_process(typed)
        if len(found) == 1:
            return found[0]
        if found:
            listed = "".join(f"\n  {each.id}" for each in found[:_MOST_CANDIDATES])
            raise click.UsageError(f"'{typed}' may mean {len(found)} things that wait; give more of the id:{listed}")
        for known, what in self.answered.items():
            if known == typed or known.endswith(f"/{typed}"):
                raise NotThereError(f"'{known}' does not wait any more: it was {what}")
        near = cut(did_you_mean(typed, [each.id for each in self.waiting]), _LONGEST_HELP) if self.waiting else ""
        unseen = [f"it may be in what could not be seen: {note}" for note in self.notes[:_MOST_NOTES]]
        hint = "\n".join([*unseen, "see what waits with: fanfold inbox"])
        raise NotThereError(f"nothing waits here as '{typed}'{near}").with_hint(hint)

    def _of_process(self, typed: str) -> list[Waiting]:
        """Those that it may mean whose process is named by one of the two only: others may have come, or gone."""

        def whole(each: Waiting) -> Waiting:
            return replace(each, id=f"{each.id.removesuffix(f'@{each.process}')}@{each.process}")

        live = [each for each in self.waiting if each.process is not None]
        return [
            each
            for each in live
            if matching([whole(each)], typed) or matching([whole(each)], f"{typed}@{each.process}")
        ]

    def server_of(self, waiting: Waiting) -> LiveServer | None:
        """Where a live one can be answered."""
        servers = (each.server for each in self._named(waiting.owner) if each.server.process == waiting.process)
        return next(servers, None)

    def live_one(self, name: str) -> LiveOne | None:
        """Where the session of that name, or id, can be asked: several processes may have it open, one runs it."""
        return min(self._named(name), key=lambda each: each.session.run_id is None, default=None)

    def _named(self, name: str) -> list[LiveOne]:
        return [each for each in self.live if name in (each.session.name, each.session.session_id)]

    def tell(self, console: Console) -> None:
        for note in self.notes:
            console.warn(f"note: {note}")


async def look_here() -> Here:
    workspace = Path.cwd()
    found = await look(workspace)
    async with open_store() as store:
        parked = await parked_in(workspace, store)
    live = [LiveOne(server, session) for server, seen in found.answered for session in seen.sessions]
    waiting = _live([seen for _, seen in found.answered], parked)
    told_by = {seen.process for _, seen in found.answered}
    waiting += _not_run(parked.waiting, [each.session for each in live], told_by, {each.id for each in waiting})
    notes = [f"{error}; what waits there is not listed" for _, error in found.silent]
    notes += [f"process {seen.process}: {seen.left_out} more wait" for _, seen in found.answered if seen.left_out]
    notes += [f"{name} cannot be read: {error}" for name, error in parked.unreadable.items()]
    notes += [
        f"what agent '{cut(one_line(label), _LONGEST_LABEL)}' of {run_id} waits for is damaged in its journal; "
        "a resume asks its model again, unless the script says otherwise"
        for run_id, label in parked.lost
    ]
    answered = dict(parked.answered)
    for _, seen in found.answered:
        answered |= seen.answered
    return Here(sorted(waiting, key=lambda each: each.since_ms or 0), live, answered, notes)


def parked_in_workflow(workflow_id: str) -> list[Waiting]:
    """What its journal has left parked."""

    async def found() -> list[Waiting]:
        async with open_store() as store:
            return await parked_steps(store, workflow_id)

    return asyncio.run(found())


def parked_in_run(run_id: str) -> list[Waiting]:
    """What its journal has left parked."""
    return asyncio.run(parked_agents(run_files(), run_id))


def _live(answered: Sequence[Seen], parked: Parked) -> list[Waiting]:
    """What live processes tell, each thing once: of a session that several of them have open only the one that runs it
    knows, and what one has read before is left out when its log says otherwise by now. Equal ids get their process."""
    told = {(each.id, each.process): each for seen in answered for each in seen.waiting}.values()
    runs = {each.name for seen in answered for each in seen.sessions if each.run_id is not None}
    parked_ids = {each.id for each in parked.waiting}
    resting = {
        each.id: each
        for each in told
        if each.since_ms is None
        and each.owner not in runs
        and (each.owner not in parked.sessions or each.id in parked_ids)
    }
    awaited = [each for each in told if each.since_ms is not None]
    count = Counter(each.id for each in awaited)
    named = [replace(each, id=f"{each.id}@{each.process}") if count[each.id] > 1 else each for each in awaited]
    return [*named, *(each for each in resting.values() if each.id not in count)]


def _not_run(
    parked: Sequence[Waiting], live: Sequence[LiveSession], told_by: set[int], listed: set[str]
) -> list[Waiting]:
    """Without those of sessions, workflows and runs that a process runs which has told of them itself."""
    sessions = {each.session_id for each in live if each.run_id is not None}
    workflows = {each.name for each in live} - {each.session_id for each in live}
    return [
        each
        for each in parked
        if each.owner not in (workflows if each.source == "workflow" else sessions)
        and each.process not in told_by
        and each.id not in listed
    ]
