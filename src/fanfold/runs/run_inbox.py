"""RunInbox: the controls of one run, with receipts that outlive it; and where its turn stands (decisions 2.8)."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from fanfold.contracts.events import event
from fanfold.contracts.runs import RunControlFault, RunControlReceipt, RunControlSnapshot
from fanfold.env import HostEnv
from fanfold.errors import RunControlError
from fanfold.protocols import EventSink
from fanfold.runs.control_request import ControlRequest, Operation

MAX_WAITING = 64
"""Steers of one run. An interrupt finds room always: a run must not be unstoppable for being talked to."""
MAX_REMEMBERED = 256
"""Request ids of one run."""
RUN_ENDED = RunControlFault(code="RUN_ENDED", message="run ended before the control reached a safe point")


class _Admitted(msgspec.Struct):
    fingerprint: str
    receipt: RunControlReceipt


class RunInbox:
    """What was accepted waits here until it is applied, or settled when the run ends first.

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

    @property
    def has_turn(self) -> bool:
        """The run has recorded its prompt, or taken up the turn that it resumes."""
        return self._turn_id is not None

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
            raise closed()
        if request.operation not in self._takes:
            raise no_active_run()
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


def no_active_run() -> RunControlError:
    return RunControlError("NO_ACTIVE_RUN", "there is no active run to control")


def closed() -> RunControlError:
    return RunControlError("CLOSED", "run-control inbox is closed")


def _used_already(request_id: str | None) -> str:
    return f"request id `{request_id}` was already used for a different command"


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
