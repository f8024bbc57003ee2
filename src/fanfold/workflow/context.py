"""WorkflowContext: the `ctx` of a script that runs here. Its twin for the sandbox is the prelude, with the same places.

A lane belongs to its task's context, so whatever a script starts inside a branch stands in that branch's lane.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, Literal, TypedDict, Unpack

from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.contracts.workflow_runs import Repeat
from fanfold.errors import FanfoldError, WorkflowAgentError, WorkflowInputError
from fanfold.foreign import is_being_cancelled
from fanfold.kernel.plain_text import plain
from fanfold.orchestration.fanout import fan_out
from fanfold.workflow.caught import failure_of
from fanfold.workflow.lanes import Lane
from fanfold.workflow.script_host import RunHaltedError, ScriptHost, SlotFailure, is_ending
from fanfold.workflow.scripts import ended_process, fault_code, fault_text, script_line

OnError = Literal["none", "raise"]
REFUSAL_SECONDS = 0.01
"""A script that swallows every refusal, and asks again at once, must not keep the loop from all others, for ever."""
_lane: ContextVar[Lane] = ContextVar("fanfold_lane")


class AgentOptions(TypedDict, total=False):
    """See `calls.AgentCall`."""

    schema: JsonObject | bool | None
    label: str | None
    phase: str | None
    model: str | None
    agent_type: str | None
    max_steps: int | None
    isolation: Literal["worktree"] | None
    timeout_ms: int | None
    retries: int | None
    share: bool | None
    repeat: Repeat | None


class Budget:
    """Tokens of the whole run, all attempts together."""

    def __init__(self, host: ScriptHost) -> None:
        self._host = host

    @property
    def total(self) -> int | None:
        """None: there is no limit."""
        return self._host.budget()[0]

    def spent(self) -> int:
        return self._host.budget()[1]

    def remaining(self) -> int | None:
        total, spent = self._host.budget()
        return None if total is None else max(0, total - spent)


class WorkflowContext:
    def __init__(self, host: ScriptHost, args: JsonObject, root: Lane, *, file_name: str, width: int) -> None:
        """`width`: branches of one split that are begun at once; `file_name`: the script's, in its tracebacks."""
        self._host = host
        self._width = width
        self._root = root
        self._file_name = file_name
        self.args = args
        self.budget = Budget(host)

    @property
    def _lane(self) -> Lane:
        return _lane.get(self._root)

    async def agent(self, prompt: str, **options: Unpack[AgentOptions]) -> Any:
        """Run an agent: its text, or with a `schema` the object that matches it. With `isolation="worktree"` a dict of
        `result`, `branch`, `commit`, `files`, `diff`, `is_cut`.

        Raises:
            WorkflowAgentError: it failed; in a slot of `parallel` or `pipeline` that makes the slot None.
            WorkflowInputError: `bad_call`, `agent_cap`.
            BudgetExhaustedError: the tokens are spent; agents under way end all the same.
        """
        lane = self._lane
        try:
            return await self._host.agent(lane.next_call(), lane.phase, prompt, options, settles=lane.is_one_agent)
        except WorkflowInputError:
            await asyncio.sleep(REFUSAL_SECONDS)
            raise

    async def parallel(self, thunks: Iterable[Callable[[], Any]], *, on_error: OnError = "none") -> list[Any]:
        """All at once, and a barrier: results in input order.

        A thunk is a function without arguments, plain or async. One that fails gives None, and the run a failure
        record; with `on_error="raise"` the first failure in input order is raised once all have ended.
        """
        work = list(thunks)
        _require_callables(work, "parallel", "thunk", 'write `lambda: ctx.agent("...")`')
        await self._require_room("parallel", len(work))
        lane = self._lane
        place = lane.next_split()

        def branch(index: int) -> Any:
            inner = _enter(lane.branch(f"{place}.{index}"))
            value = work[index]()
            inner.is_one_agent = _is_agent(value)
            return value

        return await self._slots(place, len(work), branch, on_error)

    async def pipeline(
        self, items: Iterable[Any], *stages: Callable[..., Any], on_error: OnError = "none"
    ) -> list[Any]:
        """Each item through all stages, without a barrier between them: results in input order.

        A stage is called with `(value so far, item, index)`, as many of them as it takes; plain or async.
        """
        everything = list(items)
        _require_callables(stages, "pipeline", "stage", "pass the function itself")
        await self._require_room("pipeline", len(everything))
        takes, last = [_arity(stage) for stage in stages], len(stages) - 1
        lane = self._lane
        place = lane.next_split()

        async def chain(index: int) -> Any:
            item = value = everything[index]
            phase = lane.phase
            for number, stage in enumerate(stages):
                inner = _enter(Lane(f"{place}.{index}.{number}", phase))
                try:
                    value = stage(*(value, item, index)[: takes[number]])
                    inner.is_one_agent = number == last and _is_agent(value)
                    value = await _awaited(value)
                except SystemExit as stop:
                    raise _AtStage(number, ended_process(stop)) from stop
                except Exception as error:
                    raise _AtStage(number, error) from error
                phase = inner.phase
            return value

        return await self._slots(place, len(everything), chain, on_error)

    def phase(self, title: str) -> None:
        """What comes next in this lane belongs to the phase of that title."""
        self._lane.phase = self._host.phase(title)

    def log(self, message: str) -> None:
        """A line of progress."""
        self._host.log(message)

    async def workflow(self, name: str, args: JsonObject | None = None) -> Any:
        """Run another workflow inside of this one, on its limits; one level deep. What goes wrong in it is raised."""
        lane = self._lane
        try:
            return await self._host.workflow(f"{lane.next_split()}:{name}", lane.phase, name, args)
        except WorkflowInputError:
            await asyncio.sleep(REFUSAL_SECONDS)
            raise

    def failure(self, error: BaseException) -> JsonObject:
        """What is known of an error that was caught: its `code`, its `message`, and of an agent that failed its
        `agent_code`, its `label` and `where` it was called, which are None otherwise."""
        return failure_of(error)

    def now(self) -> int:
        """When the run was first launched, Unix ms: the same in each attempt, as a script must be to be resumed."""
        return self._host.now_ms()

    def random(self) -> float:
        """0 <= x < 1, the same at this place in each attempt."""
        return self._host.random(self._lane.next_draw())

    def uuid(self) -> str:
        return self._host.uuid(self._lane.next_draw())

    # ---- slots ----

    async def _require_room(self, verb: str, count: int) -> None:
        try:
            self._host.check_items(verb, count)
        except WorkflowInputError:
            await asyncio.sleep(REFUSAL_SECONDS)
            raise

    async def _slots(self, place: str, count: int, work: Callable[[int], Any], on_error: OnError) -> list[Any]:
        """`work` gives the value of a slot, or what is to be awaited for it."""
        if on_error not in ("none", "raise"):
            raise WorkflowInputError("bad_call", f'on_error must be "none" or "raise", got {on_error!r}')
        results: list[Any] = [None] * count
        failures: dict[int, Exception] = {}
        endings: list[BaseException] = []

        async def slot(index: int) -> None:
            if endings:
                return
            stage: int | None = None
            try:
                value = work(index)
                results[index] = await value if inspect.isawaitable(value) else value
                return
            except asyncio.CancelledError as stop:
                if is_being_cancelled():
                    raise
                error: Exception = FanfoldError(f"something that it awaited was cancelled: {stop}")
            except RunHaltedError as halt:
                endings.append(halt)
                return
            except _AtStage as failed:
                stage, error = failed.stage, failed.error
            except SystemExit as stop:
                error = ended_process(stop)
            except Exception as raised:  # noqa: BLE001  a slot's own, whatever it is
                error = raised
            if is_ending(error):
                endings.append(error)
                return
            failures[index] = error
            where = f"{place}.{index}" if stage is None else f"{place}.{index}.{stage}"
            self._host.slot_failed(self._failure(where, index, stage, error))

        await fan_out(count, self._width, slot)
        await self._host.settled()
        if endings:
            raise endings[0]
        if failures and on_error == "raise":
            raise failures[min(failures)]
        return results

    def _failure(self, where: str, index: int, stage: int | None, error: Exception) -> SlotFailure:
        label, code = None, fault_code(error)
        if isinstance(error, WorkflowAgentError):
            label, code = plain(str(error.label)), plain(str(error.agent_code or code))
        return SlotFailure(
            where=where,
            index=index,
            stage=stage,
            code=code,
            message=fault_text(error),
            label=label,
            line=script_line(error, self._file_name),
        )


class _AtStage(Exception):
    def __init__(self, stage: int, error: Exception) -> None:
        super().__init__()
        self.stage = stage
        self.error = error


_AGENT = WorkflowContext.agent.__code__


def _is_agent(value: object) -> bool:
    """It is a call of `agent` that is not awaited yet."""
    return inspect.iscoroutine(value) and value.cr_code is _AGENT


def _enter(lane: Lane) -> Lane:
    """Make it the lane of the running task, which is a branch's own: so nobody has to go back to the one before."""
    _lane.set(lane)
    return lane


async def play(script: Callable[[Any, Any], Awaitable[Any]], ctx: WorkflowContext, root: Lane) -> JsonValue:
    """What the script returns for this context."""
    around = _lane.set(root)
    try:
        value: JsonValue = await _awaited(script(ctx, ctx.args))
        return value
    except SystemExit as stop:
        raise ended_process(stop) from stop
    finally:
        _lane.reset(around)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _require_callables(given: Iterable[Any], verb: str, what: str, fix: str) -> None:
    faults = [index for index, each in enumerate(given) if not callable(each)]
    if not faults:
        return
    for each in given:
        if inspect.iscoroutine(each):
            each.close()  # or Python warns that it was never awaited
    raise WorkflowInputError("bad_call", f"{verb}(): {what} {faults[0]} is not callable; {fix}")


def _arity(stage: Callable[..., Any]) -> int:
    """How many of (value, item, index) it takes."""
    try:
        parameters = inspect.signature(stage).parameters.values()
    except (TypeError, ValueError):
        return 1  # a built-in that does not tell
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 3
    return min(3, sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters))
