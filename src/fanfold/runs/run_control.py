"""Run control: the one door by which steers and interrupts reach the run under way (notes 5)."""

import asyncio
import weakref
from collections.abc import Callable, Iterable

from msgspec.structs import asdict

from fanfold.contracts.governance import Blocked, RetryLater, Skipped
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import RunControlReceipt
from fanfold.errors import RunControlError
from fanfold.governance.hooks import Hooks
from fanfold.runs.control_request import ControlRequest
from fanfold.runs.run_inbox import RunInbox, closed, no_active_run


class RunControls:
    """Admission; the checks stand in the order of notes 5.4. `inboxes`: of all runs that are kept."""

    def __init__(self, session_id: str, hooks: Hooks, inboxes: Callable[[], Iterable[RunInbox]]) -> None:
        self._session_id = session_id
        self._hooks = hooks
        self._inboxes = inboxes
        self._admissions: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """Those under way, by request id."""

    async def admit(
        self, request: ControlRequest, active: Callable[[], RunInbox | None], is_closed: Callable[[], bool]
    ) -> RunControlReceipt:
        """The receipt; of a request that is known, as it stands now.

        Requests of one id are judged one after the other: of many equal ones the first is, and all get its receipt.

        Raises:
            RunControlError: it was not accepted.
        """
        meant, alone = active(), asyncio.Lock()
        if request.request_id is not None:
            alone = self._admissions.setdefault(request.request_id, alone)
        async with alone:
            for inbox in self._inboxes():
                if (receipt := inbox.known(request)) is not None:
                    return receipt
            try:
                if not is_closed():  # its hooks are not asked any more
                    await self._ask_hooks(request)
                receipt = self._accepted(request, meant, active(), is_closed=is_closed())
            except RunControlError as error:
                await self._tell_hooks(request, state="rejected", error={"code": error.code, "message": str(error)})
                raise
            await self._tell_hooks(request, **receipt.to_dict())
            return receipt

    def _accepted(
        self, request: ControlRequest, meant: RunInbox | None, target: RunInbox | None, *, is_closed: bool
    ) -> RunControlReceipt:
        if request.session_id not in (None, self._session_id):
            message = "run-control target session does not match the active session"
            raise RunControlError("SESSION_MISMATCH", message)
        # Hooks may take their time: what was meant for the run of then is not for the one that came after it.
        if target is None or (target is not meant and request.run_id is None):
            raise closed() if is_closed else no_active_run()
        target.check(request, is_closed=is_closed)
        return target.accept(request)

    async def _ask_hooks(self, request: ControlRequest) -> None:
        if not self._hooks.hears("pre_run_control"):
            return
        match await self._hooks.fire("pre_run_control", self._described(request)):
            case Blocked() as verdict:
                raise RunControlError("HOOK_DENIED", f"run-control request was denied by a hook: {verdict.reason}")
            case Skipped():
                raise RunControlError("HOOK_DENIED", "run-control request was denied by a hook: skipped")
            case RetryLater() as verdict:
                message = f"run-control request must be retried after {verdict.delay_ms} ms: a hook put it off"
                raise RunControlError("HOOK_RETRY", message, retry_after_ms=verdict.delay_ms)
            case _:
                return

    async def _tell_hooks(self, request: ControlRequest, **judged: object) -> None:
        if self._hooks.hears("post_run_control"):
            await self._hooks.fire("post_run_control", {**self._described(request), **judged})

    def _described(self, request: ControlRequest) -> JsonObject:
        given = {key: value for key, value in asdict(request).items() if value not in (None, "")}
        return {**given, "session_id": self._session_id}
