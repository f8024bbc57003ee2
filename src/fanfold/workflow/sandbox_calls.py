"""What a script in the sandbox asks of its host: carried from the thread that drives the sandbox to our loop, and back.

The host hears of all of it in the order in which it was asked. Calls that take time are tasks of the loop; what they
come to is handed back as it settles, all that is there at once.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import msgspec

from fanfold.contracts.codec import decode_json, encode_json
from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.errors import ExecutorError, FanfoldError, SandboxError, WorkflowInputError
from fanfold.foreign import is_being_cancelled
from fanfold.orchestration.fanout import stand_in
from fanfold.workflow.caught import failure_of, failure_of_script
from fanfold.workflow.sandbox_errors import as_caught
from fanfold.workflow.script_host import RunHaltedError, ScriptHost, SlotFailure, is_ending

TAKES_TIME = frozenset({"agent", "workflow", "stand_in"})
NEEDS_NO_ANSWER = frozenset({"slot_failed", "all_begun"})

Answer = str | list[Any]
"""JSON text; or of what was raised its number in `errors`, its class and text there, and whether it ends the run."""


class Asked(msgspec.Struct, frozen=True):
    kind: str
    text: str
    """JSON."""
    call_id: int | None = None
    """Of what takes time."""


class _Split:
    """A `parallel` or `pipeline` that has more branches than are begun at once."""

    def __init__(self) -> None:
        self.asked: Asked | None = None
        """With it the prelude waits to be told whether to begin one more."""
        self.owed = 0
        self.has_begun_all = False


class SandboxCalls:
    def __init__(
        self, host: ScriptHost, end: Callable[[BaseException], None], *, max_pending_bytes: int, max_errors: int
    ) -> None:
        """`end` is called, from either side, with what is to end the sandbox at once."""
        self._host = host
        self._end = end
        self._max_pending_bytes = max_pending_bytes
        self._max_errors = max_errors
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._errors: list[tuple[tuple[str, str], Exception]] = []
        """What was raised into the script, by its number there; first what it is there, see `as_caught`."""
        # From the thread to the loop:
        self._asked: deque[Asked] = deque()
        self._is_told = False
        # From the loop to the thread; None: the sandbox was killed.
        self._answers: SimpleQueue[tuple[int | None, Answer] | None] = SimpleQueue()
        # The thread's own:
        self._settled: dict[int, Answer] = {}
        self._sizes: dict[int, int] = {}
        self._pending_bytes = 0
        # The loop's own:
        self._tasks: set[asyncio.Task[None]] = set()
        self._splits: dict[str, _Split] = {}
        self._is_closed = False

    def error_that_reads(self, error_type: str, message: str) -> Exception | None:
        """The newest of those that were raised into the script: the sandbox tells no more of what leaves it."""
        return next((error for told, error in reversed(self._errors) if told == (error_type, message)), None)

    # ---- in the thread ----

    def begin(self, asked: Asked) -> None:
        """Have it done; some time it is among the `settled`."""
        assert asked.call_id is not None
        size = len(asked.text)
        self._sizes[asked.call_id] = size
        self._pending_bytes += size
        if self._pending_bytes > self._max_pending_bytes:
            raise SandboxError(
                reason=f"its calls under way carry more than {self._max_pending_bytes:,} bytes; put large data into "
                "files and pass their paths"
            )
        self.post(asked)

    def post(self, asked: Asked) -> None:
        self._asked.append(asked)
        if not self._is_told:
            self._is_told = True
            self._loop.call_soon_threadsafe(self._hear, context=self._context)

    def answer(self, asked: Asked) -> Answer:
        """What the host answers at once."""
        self.post(asked)
        while True:
            call_id, answer = self._next()
            if call_id is None:
                return answer
            self._settled[call_id] = answer

    def settled(self) -> dict[int, Answer]:
        """All that has settled and was not handed over yet; waits until there is something."""
        while not self._settled or not self._answers.empty():
            call_id, answer = self._next()
            assert call_id is not None
            self._settled[call_id] = answer
        settled, self._settled = self._settled, {}
        for call_id in settled:
            self._pending_bytes -= self._sizes.pop(call_id)
        return settled

    def _next(self) -> tuple[int | None, Answer]:
        answered = self._answers.get()
        if answered is None:
            self._answers.put(None)  # for whoever asks next
            raise SandboxError(reason="it was killed")
        return answered

    # ---- on the loop ----

    def wake(self) -> None:
        """The sandbox was killed; from either side."""
        self._answers.put(None)

    async def close(self) -> None:
        """Nothing is begun any more; what runs is cancelled, and has ended when this returns."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _hear(self) -> None:
        self._is_told = False
        while self._asked and not self._is_closed:
            asked = self._asked.popleft()
            try:
                self._take_up(asked, decode_json(asked.text))
            except BaseException as error:  # noqa: BLE001  goes on in the script, or ends it
                self._raise(asked, error)

    def _take_up(self, asked: Asked, value: Any) -> None:
        match asked.kind:
            case "agent" | "workflow":
                task = self._loop.create_task(self._call(asked, value), context=self._surroundings(value[0]))
                self._tasks.add(task)
                task.add_done_callback(self._seen)
            case "stand_in":
                self._await_stand_in(asked, value)
            case "all_begun":
                self._all_begun(value)
            case _:
                # Not at once: the tasks above begin in the next round, and what was asked behind them comes behind.
                self._loop.call_soon(self._respond, asked, value, context=self._context)

    async def _call(self, asked: Asked, value: list[Any]) -> None:
        ask = self._host.agent if asked.kind == "agent" else self._host.workflow
        try:
            self._answer(asked, await ask(*value))
        except asyncio.CancelledError as stop:
            if is_being_cancelled():
                raise
            self._raise(asked, FanfoldError(f"something that it awaited was cancelled: {stop}"))
        except BaseException as error:  # noqa: BLE001  goes on in the script, or ends it
            self._raise(asked, error)

    def _seen(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            error: BaseException | None = ExecutorError("what a script has called cancelled the task of the call")
        else:
            error = task.exception()
        if error is not None and not self._is_closed:
            self._end(error)  # or the script would wait for an answer for ever

    def _respond(self, asked: Asked, value: Any) -> None:
        if self._is_closed:
            return
        try:
            if asked.kind == "slot_failed":
                self._slot_failed(*value)
            else:
                self._answer(asked, self._response(asked.kind, value))
        except BaseException as error:  # noqa: BLE001  goes on in the script, or ends it
            self._raise(asked, error)

    def _response(self, kind: str, value: Any) -> JsonValue:
        host = self._host
        match kind:
            case "phase":
                return host.phase(value)
            case "log":
                host.log(value)
            case "check_items":
                host.check_items(*value)
            case "random":
                return host.random(value)
            case "uuid":
                return host.uuid(value)
            case "budget":
                return list(host.budget())
            case "failure":
                return self._failure(*value)
            case _:
                raise WorkflowInputError(*value)
        return None

    def _answer(self, asked: Asked, value: JsonValue) -> None:
        self._answers.put((asked.call_id, encode_json(value).decode()))

    def _raise(self, asked: Asked, error: BaseException) -> None:
        if isinstance(error, RunHaltedError) or not isinstance(error, Exception) or asked.kind in NEEDS_NO_ANSWER:
            self._end(error)
            return
        if len(self._errors) == self._max_errors:
            self._end(SandboxError(reason=f"more than {self._max_errors:,} of its calls failed"))
            return
        told = as_caught(error)
        self._errors.append((told, error))
        self._answers.put((asked.call_id, [len(self._errors) - 1, *told, is_ending(error)]))

    def _failure(self, number: int | None, name: str, text: str) -> JsonObject:
        return failure_of_script(name, text) if number is None else failure_of(self._errors[number][1])

    def _slot_failed(
        self, number: int | None, name: str, text: str, where: str, index: int, stage: int | None, line: int | None
    ) -> None:
        failure = self._failure(number, name, text)
        self._host.slot_failed(
            SlotFailure(
                where=where,
                index=index,
                stage=stage,
                code=failure["agent_code"] or failure["code"],
                message=failure["message"],
                label=failure["label"],
                line=line,
            )
        )

    # ---- branches that wait for a person ----

    def _surroundings(self, where: str) -> contextvars.Context:
        """Of a call: `stand_in` begins one more branch of the innermost split around it."""
        surroundings = self._context.copy()
        lane, _, branch = where.rpartition("#")[0].rpartition("/")
        if branch:
            place = f"{lane}/{branch.partition('.')[0]}"
            surroundings.run(stand_in.set, lambda: self._stand_in(place))
        return surroundings

    def _await_stand_in(self, asked: Asked, place: str) -> None:
        split = self._splits.setdefault(place, _Split())
        split.asked = asked
        if split.owed:
            split.owed -= 1
            self._begin_one_more(split, True)
        elif split.has_begun_all:
            del self._splits[place]
            self._begin_one_more(split, False)

    def _stand_in(self, place: str) -> None:
        split = self._splits.get(place)
        if split is None or split.has_begun_all:
            return
        if split.asked is None:
            split.owed += 1
        else:
            self._begin_one_more(split, True)

    def _all_begun(self, place: str) -> None:
        split = self._splits[place]
        if split.asked is None:
            split.has_begun_all = True
        else:
            del self._splits[place]
            self._begin_one_more(split, False)

    def _begin_one_more(self, split: _Split, is_wanted: bool) -> None:
        assert split.asked is not None
        self._answer(split.asked, is_wanted)
        split.asked = None
