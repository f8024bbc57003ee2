"""Run control: steers and interrupts for the run under way, with receipts that outlive it (notes 5; decisions 2.8).

The checks stand in the order of notes 5.4. Admission is serial: of many equal requests one is judged, and all get its
receipt.
"""

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from fanfold.contracts.codec import encode_json
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import RunControlFault, RunControlReceipt, RunControlSnapshot
from fanfold.env import HostEnv
from fanfold.errors import RunControlError
from fanfold.kernel.plain_text import is_plain

MAX_STEER_BYTES = 131_072
MAX_REASON_BYTES = 4_096
MAX_ID_BYTES = 512
MAX_WAITING = 64
MAX_REMEMBERED = 256
"""Request ids of one run."""
MAX_RUNS_REMEMBERED = 64
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
    options = {} if options is None else dict(options)
    keys = set(ControlRequest.__struct_fields__) - {"operation", "input"}
    if operation == "steer":
        keys -= {"reason", "force"}
    if unknown := sorted(str(key) for key in set(options) - keys):
        raise _invalid(f"unknown option '{unknown[0]}'; there are: {', '.join(sorted(keys))}")
    try:
        request = msgspec.convert(
            {**options, **given, "operation": operation}, ControlRequest, strict=True, from_attributes=False
        )
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
    request: ControlRequest
    fingerprint: str
    receipt: RunControlReceipt


class RunInbox:
    """The controls of one run, and where its turn stands."""

    def __init__(self, run_id: str, session_id: str, env: HostEnv) -> None:
        self.run_id = run_id
        self._session_id = session_id
        self._env = env
        self._admitted: OrderedDict[str, _Admitted] = OrderedDict()
        self._waiting: list[str] = []
        self._sequence = 0
        self._turn_id: str | None = None
        self._revision = 0
        self._is_open = True
        self.interrupt: ControlRequest | None = None
        """The interrupt that was accepted, if one was."""

    @property
    def is_open(self) -> bool:
        """The run is active and nobody has asked it to stop."""
        return self._is_open and self.interrupt is None

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def turn_began(self, turn: int) -> None:
        self._turn_id = f"turn-{turn}"

    def revise(self) -> None:
        """A model turn was recorded, or a control applied: what was asked of the earlier state is stale."""
        self._revision += 1

    def snapshot(self) -> RunControlSnapshot:
        return RunControlSnapshot(
            session_id=self._session_id,
            run_id=self.run_id,
            active=self.is_open,
            turn_id=self._turn_id,
            turn_revision=self._revision,
            queued_controls=len(self._waiting),
            interrupt_requested=self.interrupt is not None,
            last_sequence=self._sequence,
        )

    def known(self, request: ControlRequest) -> RunControlReceipt | None:
        """The receipt of the same request, as it stands now.

        Raises:
            RunControlError: `DUPLICATE_REQUEST`, its id stands for another request.
        """
        found = None if request.request_id is None else self._admitted.get(request.request_id)
        if found is None:
            return None
        if found.fingerprint != request.fingerprint:
            message = f"request id `{request.request_id}` was already used for a different command"
            raise RunControlError("DUPLICATE_REQUEST", message)
        return found.receipt

    def check(self, request: ControlRequest) -> None:
        """Raises RunControlError: the request is not for this run as it is now."""
        if request.run_id not in (None, self.run_id):
            message = f"run-control target run `{request.run_id}` is not the active run"
            raise RunControlError("RUN_MISMATCH", message)
        if not self.is_open:
            raise no_active_run()
        if request.deadline_ms is not None and self._env.clock.now_ms() > request.deadline_ms:
            raise RunControlError("DEADLINE_EXCEEDED", "run-control request deadline has expired")
        turn, revision = request.expected_turn_id, request.expected_turn_revision
        if turn not in (None, self._turn_id) or revision not in (None, self._revision):
            raise RunControlError(
                "STALE_TURN",
                f"stale run-control request: expected turn={turn or '-'}, revision={_shown(revision)}; "
                f"current turn={self._turn_id or '-'}, revision={self._revision}",
            )
        if len(self._waiting) >= MAX_WAITING:
            raise RunControlError("QUEUE_FULL", "run-control inbox is full")

    def accept(self, request: ControlRequest) -> RunControlReceipt:
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
        self._admitted[request_id] = _Admitted(request, request.fingerprint, receipt)
        while len(self._admitted) > MAX_REMEMBERED:
            self._admitted.popitem(last=False)
        self._waiting.append(request_id)
        if request.operation == "interrupt":
            self.interrupt = request
        return receipt

    def waiting(self) -> list[tuple[str, ControlRequest]]:
        """(request id, request) of the controls that were accepted and are not applied yet, oldest first."""
        return [(each, self._admitted[each].request) for each in self._waiting if each in self._admitted]

    def applied(self, request_id: str) -> None:
        """It has had its effect. Too late after `close`, which settled it."""
        if request_id not in self._waiting:
            return
        self._waiting.remove(request_id)
        self.revise()
        self._move(request_id, state="applied", applied_at_ms=self._env.clock.now_ms(), turn_revision=self._revision)

    def close(self) -> None:
        """The run has ended: what waits is settled, and nothing is accepted any more."""
        self._is_open = False
        waiting, self._waiting = self._waiting, []
        for request_id in waiting:
            self._move(request_id, state="settled", error=RUN_ENDED)

    def receipts(self) -> list[RunControlReceipt]:
        return [each.receipt for each in self._admitted.values()]

    def saved(self) -> list[tuple[ControlRequest, RunControlReceipt]]:
        return [(each.request, each.receipt) for each in self._admitted.values()]

    def restore(self, saved: list[tuple[ControlRequest, RunControlReceipt]]) -> None:
        """Take up the receipts of a run that has ended."""
        for request, receipt in saved:
            self._admitted[receipt.request_id] = _Admitted(request, request.fingerprint, receipt)
        self.close()

    def _move(self, request_id: str, **changes: Any) -> None:
        admitted = self._admitted.get(request_id)
        if admitted is not None:
            admitted.receipt = replace(admitted.receipt, **changes)


class RunControls:
    """All inboxes that a session remembers, by run, and the one door to the active one."""

    def __init__(self, session_id: str, ask_hooks: AskHooks) -> None:
        self._session_id = session_id
        self._ask_hooks = ask_hooks
        self._inboxes: OrderedDict[str, RunInbox] = OrderedDict()
        self._admission = asyncio.Lock()

    def add(self, inbox: RunInbox) -> None:
        self._inboxes[inbox.run_id] = inbox
        while len(self._inboxes) > MAX_RUNS_REMEMBERED:
            self._inboxes.popitem(last=False)

    async def admit(
        self, request: ControlRequest, active: Callable[[], RunInbox | None], *, is_closed: Callable[[], bool]
    ) -> tuple[RunControlReceipt, bool]:
        """The receipt, and whether the request is new. Raises RunControlError."""
        async with self._admission:
            for inbox in reversed(self._inboxes.values()):
                if (receipt := inbox.known(request)) is not None:
                    return receipt, False
            await self._ask_hooks({"session_id": self._session_id, **_described(request)})
            if request.session_id not in (None, self._session_id):
                message = "run-control target session does not match the active session"
                raise RunControlError("SESSION_MISMATCH", message)
            if is_closed():
                raise RunControlError("CLOSED", "run-control inbox is closed")
            target = active()
            if target is None:
                raise no_active_run()
            target.check(request)
            return target.accept(request), True


def no_active_run() -> RunControlError:
    return RunControlError("NO_ACTIVE_RUN", "there is no active run to control")


def _described(request: ControlRequest) -> JsonObject:
    return {key: value for key, value in msgspec.structs.asdict(request).items() if value is not None}


def _shown(revision: int | None) -> str:
    return "-" if revision is None else str(revision)
