"""BudgetGate: asks the host's budget guard before each model and tool call, and takes silence for a no (seed 003)."""

import inspect
import logging
import math
from functools import partial
from typing import Literal, cast

import msgspec

from fanfold.contracts.governance import BudgetAllowed, BudgetDecision, BudgetDenial, BudgetSoft
from fanfold.contracts.messages import Usage
from fanfold.contracts.record import JsonObject
from fanfold.errors import UsageError
from fanfold.governance.callback_threads import CallbackThreads, NoAnswer, drop, has_raised
from fanfold.kernel.plain_text import plain
from fanfold.options import BUDGET_GUARD_TIMEOUT_MS

logger = logging.getLogger("fanfold")

Method = Literal["check_before_llm", "check_before_tool", "record_after_llm"]
METHODS: tuple[Method, ...] = ("check_before_llm", "check_before_tool", "record_after_llm")
MAX_TIMEOUT_MS = 2**53
"""What a loop's clock can count."""
ALLOWED = BudgetAllowed()
_RESOURCES = {
    "raised": "budget_guard_callback",
    "timeout": "budget_guard_timeout",
    "unavailable": "budget_guard_unavailable",
}
_WANTED = 'return None or {"decision": "allow" | "soft" | "deny", ...}'


class BudgetGate:
    """Asks one guard, which may be changed at any time: a call under way is answered by the guard that was asked."""

    def __init__(self, guard: object | None = None, timeout_ms: int = BUDGET_GUARD_TIMEOUT_MS) -> None:
        self._installed: _Installed | None = None
        self.replace(guard, timeout_ms)

    def replace(self, guard: object | None, timeout_ms: int = BUDGET_GUARD_TIMEOUT_MS) -> None:
        """Ask `guard` from now on; None: nobody. May be called from any thread.

        Raises:
            UsageError: `timeout_ms` is no whole number, 1 or more; the guard stays as it was.
        """
        if type(timeout_ms) is not int or not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
            raise UsageError(f"the budget guard's timeout_ms must be a whole number, 1 or more, got {timeout_ms!r}")
        self._installed = None if guard is None else _Installed(guard, timeout_ms)

    @property
    def is_set(self) -> bool:
        return self._installed is not None

    async def before_llm(self, session_id: str, estimated_tokens: int) -> BudgetDecision:
        """Whether a model call of about that many prompt tokens may be made. Never raises; bounded by the timeout."""
        installed = self._installed
        return ALLOWED if installed is None else await installed.check("check_before_llm", session_id, estimated_tokens)

    async def before_tool(self, session_id: str, tool_name: str) -> BudgetDecision:
        """Whether that tool may be called, likewise. Ask it after the permissions, not for what they refuse anyway."""
        installed = self._installed
        return ALLOWED if installed is None else await installed.check("check_before_tool", session_id, tool_name)

    async def after_llm(self, session_id: str, usage: Usage) -> None:
        """Tell what a successful model call used, and wait until it is noted: the next check may count on it."""
        installed = self._installed
        if installed is not None:
            await installed.record(session_id, usage)


class _Installed:
    def __init__(self, guard: object, timeout_ms: int) -> None:
        self._guard = guard
        self._timeout_ms = timeout_ms
        self._threads = CallbackThreads()
        self._has_warned = False
        if all(_is_missing(guard, method) for method in METHODS):
            logger.warning("budget guard %s has none of %s: it allows everything", _kind(guard), ", ".join(METHODS))

    async def check(self, method: Method, *args: object) -> BudgetDecision:
        answer = await self._threads.call(partial(_check, self._guard, method, args), self._timeout_ms)
        if isinstance(answer, NoAnswer):
            return BudgetDenial(resource=_RESOURCES[answer.why], reason=f"Python BudgetGuard.{method} {answer.reason}")
        return answer

    async def record(self, session_id: str, usage: Usage) -> None:
        told = partial(_record, self._guard, session_id, _as_dict(usage))
        failure = await self._threads.call(told, self._timeout_ms)
        if failure is not None:
            # Once: a guard whose meter is down says so with each call of a long run.
            level = logging.DEBUG if self._has_warned else logging.WARNING
            self._has_warned = True
            logger.log(level, "Python BudgetGuard.record_after_llm %s; ignored, from now on silently", failure.reason)


def _is_missing(guard: object, method: Method) -> bool:
    """Known without running code of the guard, and so also where a property may hang or raise."""
    kind = type(guard)
    is_dynamic = hasattr(kind, "__getattr__") or kind.__getattribute__ is not object.__getattribute__
    return not is_dynamic and inspect.getattr_static(guard, method, None) is None


# ---- in the guard's thread ------------------------------------------------------------------------------------------


def _called(guard: object, method: Method, args: tuple[object, ...]) -> object:
    """What the method answers, None where there is none."""
    if _is_missing(guard, method):
        return None
    try:
        function = getattr(guard, method)
    except AttributeError:
        if inspect.getattr_static(guard, method, None) is None:
            return None  # its `__getattr__` knows no such method
        raise  # a method that is there, behind a property that failed, is not a missing one
    return None if function is None else function(*args)


def _check(guard: object, method: Method, args: tuple[object, ...]) -> BudgetDecision:
    answer = _called(guard, method, args)
    if answer is None:
        return ALLOWED
    decision = _decision(answer)
    if not isinstance(decision, _Malformed):
        return decision
    drop(answer)
    reason = f"invalid Python BudgetGuard.{method} return: {decision.fault}; {_WANTED}"
    return BudgetDenial(resource="budget_guard_error", reason=plain(reason))


def _record(guard: object, session_id: str, usage: JsonObject) -> NoAnswer | None:
    answer = _called(guard, "record_after_llm", (session_id, usage))
    if inspect.iscoroutine(answer):
        drop(answer)
        return has_raised(TypeError("it is async and was not run; make it a plain function"))
    return None


def _as_dict(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
    }


# ---- what a check may answer ----------------------------------------------------------------------------------------


class _Malformed(msgspec.Struct, frozen=True):
    fault: str


def _decision(answer: object) -> BudgetDecision | _Malformed:
    if inspect.iscoroutine(answer):
        return _Malformed("a coroutine; guard methods are plain functions")
    if not isinstance(answer, dict):
        return _Malformed(f"{_kind(answer)} is no decision")
    fields = cast("JsonObject", answer)
    match fields.get("decision"):
        case "allow":
            return ALLOWED
        case "soft":
            return _soft(fields)
        case "deny":
            return _denial(fields)
        case None:
            return _Malformed("it has no 'decision'")
        case str(other):
            return _Malformed(f"unknown decision '{other[:80]}'")
        case other:
            return _Malformed(f"its 'decision' is {_kind(other)}")


def _soft(fields: JsonObject) -> BudgetSoft | _Malformed:
    resource, message = fields.get("resource"), fields.get("message")
    consumed, limit = _number(fields.get("consumed")), _number(fields.get("limit"))
    if not isinstance(resource, str):
        return _Malformed("'soft' needs a text 'resource'")
    if consumed is None or limit is None:
        return _Malformed("'soft' needs finite numbers 'consumed' and 'limit'")
    if message is not None and not isinstance(message, str):
        return _Malformed("the 'message' of 'soft' is no text")
    return BudgetSoft(
        resource=plain(resource), consumed=consumed, limit=limit, message=None if message is None else plain(message)
    )


def _denial(fields: JsonObject) -> BudgetDenial | _Malformed:
    resource, reason = fields.get("resource"), fields.get("reason")
    if not isinstance(resource, str) or not isinstance(reason, str):
        return _Malformed("'deny' needs texts 'resource' and 'reason'")
    return BudgetDenial(resource=plain(resource), reason=plain(reason))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        return None
    return number if math.isfinite(number) else None


def _kind(value: object) -> str:
    return type(value).__name__
