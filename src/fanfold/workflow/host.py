"""RunHost: what a script's calls come to: an answer that is recorded, or one that is to be had now.

Which of the two is decided at once when a call is made (spec-workflow 5.3). How an answer is to be had is the business
of `Ask`: by an agent (`agents`), by a plan that only notes the call (`plan`), or not at all (a replay).
"""

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from fanfold.contracts.record import JsonValue, own_copy
from fanfold.contracts.run_journal import Moved
from fanfold.contracts.workflow_runs import REPEAT_UNDECIDED, RepeatDecision, WorkflowLimits
from fanfold.errors import WorkflowAgentError, WorkflowInputError
from fanfold.foreign import is_being_cancelled
from fanfold.kernel.call_identity import CallMeaning, call_identity, drawn_float, drawn_uuid
from fanfold.kernel.plain_text import is_plain, plain
from fanfold.kernel.run_entries import Claim
from fanfold.kernel.run_repeats import is_repeat
from fanfold.kernel.run_view import RunJournalView
from fanfold.kernel.schema import OutputSchema
from fanfold.workflow.calls import AgentCall, Schemas, parse_call
from fanfold.workflow.progress import Progress
from fanfold.workflow.script_host import SlotFailure

MAX_LOG_CHARACTERS = 4_000


class AgentProfile(msgspec.Struct, frozen=True):
    """What an agent is besides its name, so that an answer of another one is not taken for its own."""

    model: str | None = None
    sha256: str | None = None
    """Of its definition; None for one that only a foreign executor knows."""


Profiles = Callable[[str, str | None], AgentProfile]
"""By name of the agent and the model that the call asks for."""


class PlacedCall(msgspec.Struct, frozen=True, gc=False):
    where: str
    phase: str | None
    call: AgentCall
    title: str
    """For people."""
    schema: OutputSchema | None
    identity: str
    written: bytes
    """The JSON that `identity` is the digest of."""
    settles: bool = False
    """Its answer need not be durable before `Ask.settled`."""


class Ask(Protocol):
    def __call__(self, placed: PlacedCall, claim: Claim) -> Coroutine[Any, Any, JsonValue]:
        """The answer of a call that nothing recorded answers. Raises as `ScriptHost.agent`."""
        ...

    def skipped(self, placed: PlacedCall, claim: Claim) -> Coroutine[Any, Any, JsonValue]:
        """None, for a call that is not to be run again. Raises as `ScriptHost.agent`."""
        ...

    def undecided(self, placed: PlacedCall, claim: Claim) -> Coroutine[Any, Any, JsonValue]:
        """Raises as `ScriptHost.agent`, always: a person is to decide whether the call is run again."""
        ...

    async def settled(self) -> None:
        """As `ScriptHost.settled`."""
        ...


PlayNested = Callable[[object, object, "RunHost", str, str | None], Awaitable[JsonValue]]
"""(name, args, host, where, phase): runs a workflow inside of this one, and gives what it returns."""


class RunHost:
    """The `ScriptHost` of one attempt, on the loop that it is made on."""

    def __init__(
        self,
        *,
        view: RunJournalView,
        read_blob: Callable[[str], Awaitable[bytes | None]],
        progress: Progress,
        profiles: Profiles,
        limits: WorkflowLimits,
        ask: Ask,
        play_nested: PlayNested,
        budget: Callable[[], tuple[int | None, int]],
        moved: Callable[[Moved], None],
        may_run: Callable[[str], bool] | None = None,
        is_strict: bool = False,
        repeat: RepeatDecision | None = None,
    ) -> None:
        """Args:
        moved: hears that what was recorded for another place has answered a call.
        may_run: False for a place that keeps the answer that is recorded there, whatever is asked (`only_failed`).
        is_strict: refuse what a script that is the same as before, with the same args, would not ask.
        repeat: what a person has decided of the calls that ask for it.
        """
        self._view = view
        self._read_blob = read_blob
        self._progress = progress
        self._profiles = profiles
        self.limits = limits
        self._ask = ask
        self._play_nested = play_nested
        self._budget = budget
        self._moved = moved
        self._may_run = may_run
        self._is_strict = is_strict
        self._repeat = repeat
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._schemas = Schemas()
        self._known_profiles: dict[tuple[str, str | None], AgentProfile] = {}
        self._shared: dict[str, asyncio.Future[JsonValue]] = {}
        self._is_nested = False

    @property
    def max_items(self) -> int:
        return self.limits.max_items

    @property
    def seed(self) -> str:
        """What chance in the script is derived from."""
        return self._view.seed

    # ---- agents ----

    def agent(
        self, where: str, phase: str | None, prompt: object, options: Mapping[str, Any], *, settles: bool = False
    ) -> Coroutine[Any, Any, JsonValue]:
        # No coroutine of its own, for each one on the way to an agent is gone through at every step of that.
        self._require_script("agent")
        placed = self._placed(where, phase, parse_call(prompt, options), settles)
        return self._shared_answer(placed) if placed.call.share else self._answer(placed)

    async def settled(self) -> None:
        await self._ask.settled()

    def _placed(self, where: str, phase: str | None, call: AgentCall, settles: bool) -> PlacedCall:
        key = (call.agent_type, call.model)
        profile = self._known_profiles.get(key)
        if profile is None:
            profile = self._known_profiles[key] = self._profiles(*key)
        schema = None if call.schema is None else self._schemas.of(call.schema)
        meaning = CallMeaning(
            prompt=call.prompt,
            schema=call.schema,
            agent=call.agent_type,
            agent_sha=profile.sha256,
            model=profile.model,
            max_steps=call.max_steps,
            isolation=call.isolation,
        )
        identity, written = call_identity(meaning)
        settles = settles and not call.share  # others get that answer, and they may see it
        return PlacedCall(where, call.phase or phase, call, call.title, schema, identity, written, settles)

    def _answer(self, placed: PlacedCall) -> Coroutine[Any, Any, JsonValue]:
        claim = self._view.claim(placed.identity, placed.where)
        if self._may_run is not None and not claim.is_answered and not self._may_run(placed.where):
            standing = self._view.places().get(placed.where)
            if standing is not None and standing.is_open and standing.is_answer:
                claim = self._view.claim(standing.identity, placed.where)
        return self._replayed(placed, claim) if claim.is_answered else self._asked(placed, claim)

    async def _replayed(self, placed: PlacedCall, claim: Claim) -> JsonValue:
        view = self._view
        while claim.is_answered:
            is_read, value = await self._recorded(claim)
            if is_read and (placed.schema is None or value is None or not placed.schema.validate(_bare(placed, value))):
                self._progress.cached += 1
                if claim.moved is not None:
                    self._moved(claim.moved)
                self._progress.agent(placed.where, placed.title, placed.phase, placed.call, "cached")
                return value
            view.reject(claim)
            claim = view.claim(placed.identity, placed.where)
        return await self._asked(placed, claim)

    def _asked(self, placed: PlacedCall, claim: Claim) -> Coroutine[Any, Any, JsonValue]:
        if self._is_strict and claim.kind == "new":
            self._require_same_way(placed)
        if placed.call.repeat != "rerun" and is_repeat(claim):
            return self._as_marked(placed, claim)
        return self._ask(placed, claim)

    def _as_marked(self, placed: PlacedCall, claim: Claim) -> Coroutine[Any, Any, JsonValue]:
        how = "skip" if placed.call.repeat == "skip" else self._repeat
        if how == "rerun":
            return self._ask(placed, claim)
        return self._ask.skipped(placed, claim) if how == "skip" else self._ask.undecided(placed, claim)

    def _require_same_way(self, placed: PlacedCall) -> None:
        """Raises WorkflowInputError: the script goes another way though no answer so far is another one."""
        stood = self._view.places().get(placed.where)
        if stood is None or not (stood.is_open and stood.is_answer) or self._progress.launched:
            return
        before: JsonValue = msgspec.json.decode(stood.call)
        if not isinstance(before, dict) or before.get("prompt") == placed.call.prompt:
            return  # it was lost; or another model or agent is asked the same
        raise WorkflowInputError(
            "nondeterministic",
            f"agent() at {placed.where} asks something else than in an earlier attempt, though all answers before were "
            "the same: the script goes by the clock, by chance, files or sets, or was changed; see `ctx.now()`, "
            "`ctx.random()`, or go on without `strict`",
        )

    async def _recorded(self, claim: Claim) -> tuple[bool, JsonValue]:
        """(whether it could be read, the value): what a blob holds may be lost or damaged."""
        result = claim.result
        data: bytes | msgspec.Raw | None = result.value if result.blob is None else await self._read_blob(result.blob)
        if data is None:
            return False, None
        try:
            value: JsonValue = msgspec.json.decode(data)
            return True, value
        except (msgspec.DecodeError, RecursionError):
            return False, None

    async def _shared_answer(self, placed: PlacedCall) -> JsonValue:
        """One answer for all equal calls; each gets a copy of its own."""
        while (under_way := self._shared.get(placed.identity)) is not None:
            try:
                shared: JsonValue = await asyncio.shield(under_way)
            except asyncio.CancelledError:
                if is_being_cancelled() or not under_way.cancelled():
                    raise
                continue  # whoever asked first was cancelled: somebody who still wants it asks anew
            copied: JsonValue = own_copy(shared)
            return copied
        answer: asyncio.Future[JsonValue] = self._loop.create_future()
        self._shared[placed.identity] = answer
        try:
            value = await self._answer(placed)
        except BaseException as error:
            # An error is shared with those who wait, and with no later call; but that a person is to decide with all,
            # for the next equal call would be a new one, and do what was to wait.
            if not _is_undecided(error):
                del self._shared[placed.identity]
            if isinstance(error, asyncio.CancelledError):
                answer.cancel()
            else:
                answer.set_exception(error)
                answer.exception()
            raise
        answer.set_result(value)
        own: JsonValue = own_copy(value)
        return own

    # ---- the rest of what a script may ask ----

    async def workflow(self, where: str, phase: str | None, name: object, args: object) -> JsonValue:
        self._require_script("workflow")
        if self._is_nested:
            raise WorkflowInputError("nesting", f"workflow({name!r}): a nested workflow cannot run another one")
        return await self._play_nested(name, args, self.inner(), where, phase)

    def inner(self) -> "RunHost":
        """The same for a workflow that this one runs."""
        inner = copy.copy(self)
        inner._is_nested = True
        return inner

    def phase(self, title: object) -> str:
        self._require_script("phase")
        if not isinstance(title, str) or not title.strip() or not is_plain(title):
            raise WorkflowInputError("bad_call", f"phase(): its title must be text that is not blank, got {title!r}")
        self._progress.phase_is(title)
        return title

    def log(self, message: object) -> None:
        self._require_script("log")
        text = plain(message if isinstance(message, str) else repr(message))
        if len(text) > MAX_LOG_CHARACTERS:
            text = f"{text[:MAX_LOG_CHARACTERS]}… ({len(text)} characters)"
        self._progress.log(text)

    def slot_failed(self, failure: SlotFailure) -> None:
        self._progress.slot_failed(failure)

    def check_items(self, verb: str, count: int) -> None:
        self._require_script(verb)
        if count > self.limits.max_items:
            raise WorkflowInputError(
                "fanout_limit",
                f"{verb}() was given {count} items, and one call takes at most {self.limits.max_items}; nothing of it "
                "was started: split it into several calls",
            )
        self._progress.slots += count

    def now_ms(self) -> int:
        self._require_script("now")
        return self._view.first_ms

    def random(self, where: str) -> float:
        self._require_script("random")
        return drawn_float(self._view.seed, where)

    def uuid(self, where: str) -> str:
        self._require_script("uuid")
        return drawn_uuid(self._view.seed, where)

    def budget(self) -> tuple[int | None, int]:
        return self._budget()

    def _require_script(self, verb: str) -> None:
        if self._progress.is_over:
            raise WorkflowInputError("wrong_moment", f"{verb}() was called after its run had ended")
        # A thread runs one loop at a time, and to ask which one is a system call.
        if threading.get_ident() != self._thread:
            raise WorkflowInputError(
                "wrong_moment", f"{verb}() was called from another thread than the one that runs the script"
            )


def _is_undecided(error: BaseException) -> bool:
    return isinstance(error, WorkflowAgentError) and error.agent_code == REPEAT_UNDECIDED


def _bare(placed: PlacedCall, value: JsonValue) -> JsonValue:
    """What the schema is about: with a worktree the answer stands beside what was changed there."""
    if placed.call.isolation is None or not isinstance(value, dict):
        return value
    answer: JsonValue = value.get("result")
    return answer
