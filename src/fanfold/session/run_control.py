"""Run control: steers and interrupts for the run under way, with receipts that outlive it (notes 5; decisions 2.8).

Admission is serial, with the checks in the order of notes 5.4: of many equal requests one is judged, and all get its
receipt. What was accepted waits in the inbox of its run until it is applied there, or settled when the run ends first.
"""

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from fanfold.contracts.codec import encode_json
from fanfold.contracts.events import event
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import RunControlFault, RunControlReceipt, RunControlSnapshot
from fanfold.env import HostEnv
from fanfold.errors import RunControlError
from fanfold.kernel.plain_text import is_plain
from fanfold.protocols import EventSink

MAX_STEER_BYTES = 131_072
MAX_REASON_BYTES = 4_096
MAX_ID_BYTES = 512
MAX_WAITING = 64
"""Steers of one run. An interrupt finds room always: a run must not be unstoppable for being talked to."""
MAX_REMEMBERED = 256
"""Request ids of one run."""
RUN_ENDED = RunControlFault(code="RUN_ENDED", message="run ended before the control reached a safe point")

Operation = Literal["steer", "interrupt"]
AskHooks = Callable[[JsonObject], Awaitable[None]]
"""The hook `pre_run_control`; raises RunControlError when it denies or puts off."""


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    operation: Operation
    input: str = ""
    reason: str = ""
    request_id: str | None = None
    session_id: str | None = None
    run_id: str | None = None
    expected_turn_id: str | None = None
    expected_turn_revision: int | None = None
    deadline_ms: int | None = None
    force: bool = False
    """Advice only: clean-up is always waited for."""

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(encode_json(self)).hexdigest()


def parse_request(operation: Operation, options: Mapping[str, Any] | None, **given: Any) -> ControlRequest:
    """Raises RunControlError, `INVALID_REQUEST`."""
    keys = set(ControlRequest.__struct_fields__) - {"operation", "input"}
    if operation == "steer":
        keys -= {"reason", "force"}
    try:
        found = {key: value for key, value in dict({} if options is None else options).items() if value is not None}
    except (TypeError, ValueError):
        raise _invalid(f"options must be a mapping, got {options!r}") from None
    if unknown := sorted(str(key) for key in set(found) - keys):
        raise _invalid(f"unknown option '{unknown[0]}'; there are: {', '.join(sorted(keys))}")
    try:
        request = msgspec.convert({**found, **given, "operation": operation}, ControlRequest)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        raise _invalid(f"{place.strip('`').removeprefix('$.')}: {reason}") from None
    _check_shape(request)
    return request


def _check_shape(request: ControlRequest) -> None:
    if request.operation == "steer":
        if not request.input.strip():
            raise _invalid("steer input must not be empty")
        _check_size("steer input", request.input, MAX_STEER_BYTES)
    _check_size("reason", request.reason, MAX_REASON_BYTES)
    for field in ("request_id", "session_id", "run_id", "expected_turn_id"):
        text: str | None = getattr(request, field)
        if text is None:
            continue
        if not text.strip():
            raise _invalid(f"{field} must not be empty")
        if re.search(r"[\0\r\n]", text):
            raise _invalid(f"{field} contains a control character")
        _check_size(field, text, MAX_ID_BYTES)


def _check_size(what: str, text: str, most: int) -> None:
    if not is_plain(text):
        raise _invalid(f"{what} is not text that can be written as UTF-8")
    if len(text.encode()) > most:
        raise _invalid(f"{what} exceeds {most} bytes")


def _invalid(why: str) -> RunControlError:
    return RunControlError("INVALID_REQUEST", f"invalid run-control request: {why}")


class _Admitted(msgspec.Struct):
    fingerprint: str
    receipt: RunControlReceipt


class RunInbox:
    """The controls of one run, and where its turn stands.

    Args:
        stop: what an accepted interrupt does.
        tell: hears `run_control_applied`.
    """

    def __init__(
        self, run_id: str, session_id: str, env: HostEnv, *, stop: Callable[[], object], tell: EventSink
    ) -> None:
        self.run_id = run_id
        self._session_id = session_id
        self._env = env
        self._stop = stop
        self._tell = tell
        self._admitted: OrderedDict[str, _Admitted] = OrderedDict()
        self._waiting: dict[str, ControlRequest] = {}
        """Accepted and not applied yet, oldest first."""
        self._sequence = 0
        self._turn_id: str | None = None
        self._revision = 0
        self._takes: tuple[Operation, ...] = ("steer", "interrupt")

    # ---- where the run stands ----

    def turn_began(self, turn: int) -> None:
        self._turn_id = f"turn-{turn}"

    def revise(self) -> None:
        """A model turn was recorded, or a control applied: what was asked of the earlier state is stale."""
        self._revision += 1

    def refuse_steers(self) -> None:
        """No model call follows that could hear one."""
        self._takes = tuple(each for each in self._takes if each != "steer")

    def refuse_all(self) -> None:
        """The run is being stopped."""
        self._takes = ()

    def snapshot(self) -> RunControlSnapshot:
        return RunControlSnapshot(
            session_id=self._session_id,
            run_id=self.run_id,
            active=bool(self._takes),
            turn_id=self._turn_id,
            turn_revision=self._revision,
            queued_controls=len(self._waiting),
            interrupt_requested=not self._takes,
            last_sequence=self._sequence,
        )

    # ---- admission ----

    def known(self, request: ControlRequest) -> RunControlReceipt | None:
        """The receipt of the same request, as it stands now.

        Raises:
            RunControlError: `DUPLICATE_REQUEST`, its id stands for another request.
        """
        found = None if request.request_id is None else self._admitted.get(request.request_id)
        if found is None:
            return None
        if found.fingerprint != request.fingerprint:
            raise RunControlError("DUPLICATE_REQUEST", _used_already(request.request_id))
        return found.receipt

    def check(self, request: ControlRequest, *, is_closed: bool) -> None:
        """Raises RunControlError: the request is not for this run as it is now."""
        if request.run_id not in (None, self.run_id):
            message = f"run-control target run `{request.run_id}` is not the active run"
            raise RunControlError("RUN_MISMATCH", message)
        if is_closed:
            raise _closed()
        if request.operation not in self._takes:
            raise _no_active_run()
        if request.deadline_ms is not None and self._env.clock.now_ms() > request.deadline_ms:
            raise RunControlError("DEADLINE_EXCEEDED", "run-control request deadline has expired")
        turn, revision = request.expected_turn_id, request.expected_turn_revision
        if turn not in (None, self._turn_id) or revision not in (None, self._revision):
            raise RunControlError(
                "STALE_TURN",
                f"stale run-control request: expected turn={_shown(turn)}, revision={_shown(revision)}; "
                f"current turn={_shown(self._turn_id)}, revision={self._revision}",
            )
        if len(self._waiting) >= MAX_WAITING and request.operation == "steer":
            raise RunControlError("QUEUE_FULL", "run-control inbox is full")

    def accept(self, request: ControlRequest) -> RunControlReceipt:
        """Take in a request that `check` let pass; an interrupt stops the run, once its receipt stands."""
        self._sequence += 1
        request_id = request.request_id or self._env.ids.new_id()
        receipt = RunControlReceipt(
            request_id=request_id,
            session_id=self._session_id,
            run_id=self.run_id,
            operation=request.operation,
            state="accepted",
            sequence=self._sequence,
            turn_id=self._turn_id,
            turn_revision=self._revision,
            accepted_at_ms=self._env.clock.now_ms(),
        )
        self._admitted[request_id] = _Admitted(request.fingerprint, receipt)
        self._waiting[request_id] = request
        while len(self._admitted) > MAX_REMEMBERED:
            self._admitted.popitem(last=False)
        if request.operation == "interrupt":
            self._stop()
        return receipt

    # ---- what becomes of them ----

    def next(self, operation: Operation) -> tuple[str, ControlRequest] | None:
        """The oldest one that waits, and its id."""
        return next((each for each in self._waiting.items() if each[1].operation == operation), None)

    def applied(self, request_id: str) -> None:
        """It has had its effect. Too late after `close`, which settled it."""
        request = self._waiting.pop(request_id, None)
        if request is None:
            return
        self.revise()
        turn_id, revision = self._turn_id, self._revision
        now = self._env.clock.now_ms()
        self._move(request_id, state="applied", applied_at_ms=now, turn_id=turn_id, turn_revision=revision)
        more = {"input": request.input} if request.operation == "steer" else {"reason": request.reason}
        self._tell(
            event(
                "run_control_applied",
                request_id=request_id,
                operation=request.operation,
                turn_id=turn_id,
                turn_revision=revision,
                **more,
            )
        )

    def refused(self, request_id: str) -> None:
        """Its id stands for another command in the log, of a run that nobody here remembers."""
        self._waiting.pop(request_id, None)
        fault = RunControlFault(code="DUPLICATE_REQUEST", message=_used_already(request_id))
        self._move(request_id, state="settled", error=fault)

    def close(self) -> None:
        """The run has ended: what waits is settled, and nothing is accepted any more."""
        self.refuse_all()
        waiting, self._waiting = self._waiting, {}
        for request_id in waiting:
            self._move(request_id, state="settled", error=RUN_ENDED)

    def _move(self, request_id: str, **changes: Any) -> None:
        admitted = self._admitted.get(request_id)
        if admitted is not None:
            admitted.receipt = replace(admitted.receipt, **changes)

    # ---- the record ----

    def receipts(self) -> list[RunControlReceipt]:
        """Oldest first, as they stand now."""
        return [each.receipt for each in self._admitted.values()]

    def saved(self) -> list[tuple[str, RunControlReceipt]]:
        """(fingerprint of the request, receipt), oldest first."""
        return [(each.fingerprint, each.receipt) for each in self._admitted.values()]

    def restore(self, saved: Iterable[tuple[str, RunControlReceipt]]) -> None:
        """Take up the receipts of a run that has ended."""
        self._admitted.update((receipt.request_id, _Admitted(print_, receipt)) for print_, receipt in saved)


class RunControls:
    """The one door to the inbox of the run under way. `inboxes`: of all runs that are kept, for their receipts."""

    def __init__(self, session_id: str, ask_hooks: AskHooks, inboxes: Callable[[], Iterable[RunInbox]]) -> None:
        self._session_id = session_id
        self._ask_hooks = ask_hooks
        self._inboxes = inboxes
        self._admission = asyncio.Lock()

    async def admit(
        self, request: ControlRequest, active: Callable[[], RunInbox | None], is_closed: Callable[[], bool]
    ) -> RunControlReceipt:
        """The receipt; of a request that is known, as it stands now. Raises RunControlError."""
        meant = active()
        async with self._admission:
            for inbox in self._inboxes():
                if (receipt := inbox.known(request)) is not None:
                    return receipt
            await self._ask_hooks(self._described(request))
            if request.session_id not in (None, self._session_id):
                message = "run-control target session does not match the active session"
                raise RunControlError("SESSION_MISMATCH", message)
            target = active()
            # Hooks may take their time: what was meant for the run of then is not for the one that came after it.
            if target is None or (target is not meant and request.run_id is None):
                raise _closed() if is_closed() else _no_active_run()
            target.check(request, is_closed=is_closed())
            return target.accept(request)

    def _described(self, request: ControlRequest) -> JsonObject:
        given = {key: value for key, value in msgspec.structs.asdict(request).items() if value not in (None, "")}
        return {**given, "session_id": self._session_id}


def _no_active_run() -> RunControlError:
    return RunControlError("NO_ACTIVE_RUN", "there is no active run to control")


def _closed() -> RunControlError:
    return RunControlError("CLOSED", "run-control inbox is closed")


def _used_already(request_id: str | None) -> str:
    return f"request id `{request_id}` was already used for a different command"


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
