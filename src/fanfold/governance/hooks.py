"""Hooks: a host's functions at set points of a session; at some of them they decide what happens (notes 9.3)."""

import asyncio
import copy
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, get_args

import msgspec

from fanfold.contracts.governance import (
    BLOCKING_EVENTS,
    Blocked,
    HookConfig,
    HookEvent,
    HookMatcher,
    HookVerdict,
    Proceed,
)
from fanfold.contracts.record import JsonObject
from fanfold.errors import InvalidHookError
from fanfold.foreign import call_foreign
from fanfold.governance.callback_threads import CallbackThreads, NoAnswer, drop, has_raised, is_async, timed_out
from fanfold.kernel.hook_answer import MalformedAnswer, read_answer
from fanfold.kernel.hook_match import is_heard
from fanfold.kernel.permissions import normal_path
from fanfold.kernel.plain_text import plain
from fanfold.protocols import HookHandler

S = TypeVar("S", HookMatcher, HookConfig)
logger = logging.getLogger("fanfold")

HOOK_EVENTS: tuple[HookEvent, ...] = get_args(HookEvent)
CLOSE_GRACE_MS = 2_000
"""For what runs beside the session at its close, and once more for what had to be cancelled then."""

MAX_NESTED = 8
"""Hooks within hooks: a handler whose own calls are heard by itself would go on until no thread is left."""

PROCEED = Proceed()
Answer = HookVerdict | NoAnswer | MalformedAnswer


class Hook(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    id: str
    event: HookEvent
    matcher: HookMatcher
    config: HookConfig
    handler: HookHandler
    is_async: bool
    threads: CallbackThreads


class _Asking:
    """A handler that is waited for, within those that are. What it does is done in copies of this context."""

    def __init__(self, outer: "_Asking | None") -> None:
        self.outer = outer
        self.depth: int = 1 if outer is None else outer.depth + 1
        self.is_over = False

    @staticmethod
    def current() -> "_Asking | None":
        """The innermost one; what a handler has left running when it returned is within none."""
        asking = _asking.get()
        while asking is not None and asking.is_over:
            asking = asking.outer
        return asking


_asking: ContextVar[_Asking | None] = ContextVar("fanfold_hook", default=None)


class Hooks:
    """The hooks of one session and of all its children. Registering counts from the next event on.

    Args:
        common: goes into every event, such as the host's tags.
        real_path: where in the workspace a path argument really leads: what path patterns are compared with.
    """

    def __init__(
        self, *, common: Mapping[str, object] | None = None, real_path: Callable[[str], str] = normal_path
    ) -> None:
        self._common = dict(common or {})
        self._real_path = real_path
        self._lock = threading.Lock()
        self._by_id: dict[str, Hook] = {}
        self._by_event: dict[HookEvent, tuple[Hook, ...]] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    # ---- from any thread ----

    def register(
        self,
        hook_id: str,
        event_type: str,
        matcher: HookMatcher | JsonObject | None = None,
        config: HookConfig | JsonObject | None = None,
        handler: HookHandler | None = None,
    ) -> None:
        """Have `handler` called at each `event_type` that `matcher` lets through.

        Raises:
            InvalidHookError: an argument that cannot be meant so, or an id that is taken.
        """
        hook = _hook(hook_id, event_type, matcher, config, handler)
        with self._lock:
            if hook_id in self._by_id:
                raise InvalidHookError(f"hook '{hook_id}' is registered already; unregister it first")
            self._by_id[hook_id] = hook
            self._arrange()

    def unregister(self, hook_id: str) -> bool:
        """False when there was none of that id. What it has under way goes on."""
        with self._lock:
            if self._by_id.pop(hook_id, None) is None:
                return False
            self._arrange()
            return True

    def _arrange(self) -> None:
        # Replaced as a whole: whoever goes through it just now is not disturbed.
        arranged: dict[HookEvent, tuple[Hook, ...]] = {}
        for hook in sorted(self._by_id.values(), key=lambda hook: hook.config.priority):
            arranged[hook.event] = (*arranged.get(hook.event, ()), hook)
        self._by_event = arranged

    @property
    def count(self) -> int:
        return len(self._by_id)

    @property
    def is_empty(self) -> bool:
        """Nobody hears anything."""
        return not self._by_event

    def hears(self, event: HookEvent) -> bool:
        """Whether anybody might hear it: ask before a payload is built for nobody."""
        return event in self._by_event

    # ---- on the session's loop ----

    async def fire(
        self, event: HookEvent, payload: JsonObject, real_path: Callable[[str], str] | None = None
    ) -> HookVerdict:
        """Tell the hooks that hear `event`, one after the other, and return what they decided.

        Each handler gets a copy of its own: `common`, `payload` as modified by those before it, and `event_type`. At a
        point of `BLOCKING_EVENTS` the first verdict other than `Proceed` ends the round and stands, and a handler that
        fails has blocked; elsewhere answers count for nothing, and failures are logged. `Proceed.modified` holds the
        keys of `payload` that have new values. `real_path` is that of a child which works in another folder.
        """
        real_path = real_path or self._real_path
        is_blocking = event in BLOCKING_EVENTS
        current: JsonObject = {**self._common, **payload, "event_type": event}
        modified: JsonObject = {}
        for hook in self._by_event.get(event, ()):
            if not is_heard(hook.matcher, current, real_path):
                continue
            if self._is_closed:
                return Blocked("the session is closed: its hooks are not asked any more") if is_blocking else PROCEED
            given = copy.deepcopy(current)
            if hook.config.async_execution:
                self._own(self._beside(hook, given))
                continue
            answer = await self._ask(hook, given)
            if isinstance(answer, NoAnswer | MalformedAnswer):
                answer = _failed(hook, answer)
            if not is_blocking:
                continue
            if not isinstance(answer, Proceed):
                return answer
            modified |= answer.modified or {}
            current |= answer.modified or {}
        return Proceed(modified) if modified else PROCEED

    async def close(self, grace_ms: int = CLOSE_GRACE_MS) -> None:
        """Call no handler any more; what runs beside the session gets the time of grace, then it is cancelled.

        Bounded: a plain function cannot be stopped and is left behind in its thread. Closing twice does no harm.
        """
        self._is_closed = True
        rest = self._under_way - {asyncio.current_task()}
        try:
            if rest:
                await asyncio.wait(rest, timeout=grace_ms / 1000)
        finally:
            rest = {task for task in rest if not task.done()}
            for task in rest:
                task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=grace_ms / 1000)

    # ---- inside ----

    def _own(self, work: Coroutine[Any, Any, Answer]) -> "asyncio.Task[Answer]":
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _beside(self, hook: Hook, payload: JsonObject) -> Answer:
        answer = await self._ask(hook, payload)
        if isinstance(answer, NoAnswer | MalformedAnswer):
            _failed(hook, answer)
        return answer

    async def _ask(self, hook: Hook, payload: JsonObject) -> Answer:
        """The answer, asked for again where it raised or timed out and retries are left."""
        asking = _Asking(_Asking.current())
        if asking.depth > MAX_NESTED:
            return MalformedAnswer(f"it would be {asking.depth} hooks deep in what hooks themselves do; not called")
        before = _asking.set(asking)
        try:
            answer = await self._attempt(hook, payload)
            for _ in range(hook.config.max_retries):
                if not isinstance(answer, NoAnswer) or self._is_closed:
                    break
                answer = await self._attempt(hook, payload)
            return answer
        finally:
            asking.is_over = True
            _asking.reset(before)

    async def _attempt(self, hook: Hook, payload: JsonObject) -> Answer:
        given = copy.deepcopy(payload) if hook.config.max_retries else payload
        timeout_ms = hook.config.timeout_ms
        if not hook.is_async:
            return await hook.threads.call(partial(_called, hook, given), timeout_ms)
        # A task of its own, for a handler that does not end when it is cancelled must not hold up the session.
        task = self._own(call_foreign(_awaited(hook, given), has_raised))
        try:
            await asyncio.wait((task,), timeout=timeout_ms / 1000)
        finally:
            task.cancel()
        if not task.done():
            return timed_out(timeout_ms)
        return NoAnswer("raised", "was cancelled") if task.cancelled() else task.result()


# ---- asking one handler ---------------------------------------------------------------------------------------------


def _called(hook: Hook, payload: JsonObject) -> HookVerdict | MalformedAnswer:
    """In a thread."""
    answer = hook.handler(payload)
    if inspect.iscoroutine(answer):
        drop(answer)
        return MalformedAnswer("hook callback returned a coroutine; register the `async def` function itself")
    return _read(hook.event, answer)


async def _awaited(hook: Hook, payload: JsonObject) -> Answer:
    return _read(hook.event, await hook.handler(payload))


def _read(event: HookEvent, answer: object) -> HookVerdict | MalformedAnswer:
    try:
        return read_answer(event, answer)
    except MalformedAnswer as error:
        return error


def _failed(hook: Hook, answer: NoAnswer | MalformedAnswer) -> Blocked:
    why = f"it {answer.reason}" if isinstance(answer, NoAnswer) else str(answer)
    reason = plain(f"Python hook callback failed: '{hook.id}' at {hook.event}: {why}")
    logger.warning(reason)
    return Blocked(reason)


# ---- registering ----------------------------------------------------------------------------------------------------


def _hook(
    hook_id: str,
    event_type: str,
    matcher: HookMatcher | JsonObject | None,
    config: HookConfig | JsonObject | None,
    handler: HookHandler | None,
) -> Hook:
    if not isinstance(hook_id, str) or not hook_id:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidHookError(f"hook_id must be a text that is not empty, got {hook_id!r}")
    event = _event_of(event_type)
    if event is None:
        raise InvalidHookError(
            f"Invalid hook event type: '{event_type}'. Expected one of: {', '.join(sorted(HOOK_EVENTS))}"
        )
    if not callable(handler):
        raise InvalidHookError(f"hook '{hook_id}': handler must be a function of one dict, got {handler!r}")
    settings = _read_struct(hook_id, "config", config, HookConfig)
    if settings.timeout_ms < 1 or settings.max_retries < 0:
        raise InvalidHookError(f"hook '{hook_id}': config: timeout_ms must be 1 or more, max_retries 0 or more")
    return Hook(
        id=hook_id,
        event=event,
        matcher=_read_struct(hook_id, "matcher", matcher, HookMatcher),
        config=settings,
        handler=handler,
        is_async=is_async(handler),
        threads=CallbackThreads(),
    )


def _event_of(name: object) -> HookEvent | None:
    return next((each for each in HOOK_EVENTS if each == name), None)


def _read_struct(hook_id: str, name: str, given: object, kind: type[S]) -> S:
    if given is None:
        return kind()
    try:
        return msgspec.convert(msgspec.to_builtins(given), kind)
    except (msgspec.ValidationError, TypeError) as error:
        fields = ", ".join(kind.__struct_fields__)
        raise InvalidHookError(f"hook '{hook_id}': {name}: {error}; it has: {fields}") from None
