"""Hooks hear in their order, decide only where they may, and stop what comes next when they fail there."""

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, get_args

import pytest

from fanfold.contracts.governance import (
    BLOCKING_EVENTS,
    Blocked,
    HookConfig,
    HookEvent,
    HookMatcher,
    HookVerdict,
    Proceed,
    RetryLater,
    Skipped,
)
from fanfold.errors import InvalidHookError, UsageError
from fanfold.governance.hooks import MAX_NESTED, Hooks

CALL: dict[str, Any] = {"session_id": "s", "tool": "write", "args": {"file_path": "a.txt", "content": "x"}}
EVENTS: tuple[HookEvent, ...] = get_args(HookEvent)


class Handler:
    """Answers with `answer`, or with what it returns or raises; keeps what it heard."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.heard: list[dict[str, Any]] = []

    def __call__(self, payload: dict[str, Any]) -> Any:
        self.heard.append(payload)
        return self.answer() if callable(self.answer) else self.answer


class AsyncHandler(Handler):
    async def __call__(self, payload: dict[str, Any]) -> Any:
        return super().__call__(payload)


def raising(error: BaseException) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


def hooks_with(*handlers: Any, event: str = "pre_tool_use", **config: Any) -> Hooks:
    hooks = Hooks()
    for number, handler in enumerate(handlers):
        hooks.register(f"h{number}", event, config=config, handler=handler)
    return hooks


def fire(hooks: Hooks, event: HookEvent = "pre_tool_use", payload: dict[str, Any] = CALL) -> HookVerdict:
    return asyncio.run(hooks.fire(event, payload))


def blocked_reason(verdict: HookVerdict) -> str:
    assert isinstance(verdict, Blocked)
    return verdict.reason


@contextmanager
def hanging() -> Iterator[Callable[[], Any]]:
    """An answer that does not come before the block ends."""
    over = threading.Event()
    try:
        yield lambda: over.wait(20) and None
    finally:
        over.set()


HANDLERS = pytest.mark.parametrize("kind", [Handler, AsyncHandler], ids=["plain", "async"])


# ---- answers --------------------------------------------------------------------------------------------------------


@HANDLERS
@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (None, Proceed()),
        ({"action": "continue"}, Proceed()),
        ({"action": "continue", "modified": {}}, Proceed()),
        ({"action": "continue", "modified": {"args": {"a": 1}}}, Proceed({"args": {"a": 1}})),
        ({"action": "block"}, Blocked("Blocked by hook")),
        ({"action": "block", "reason": "not now"}, Blocked("not now")),
        ({"action": "skip"}, Skipped()),
        ({"action": "skip", "reason": "no need"}, Skipped()),
        ({"action": "retry"}, RetryLater(1000)),
        ({"action": "retry", "delay_ms": 5}, RetryLater(5)),
    ],
    ids=str,
)
def test_each_answer_has_its_verdict(kind: type[Handler], answer: Any, verdict: HookVerdict) -> None:
    assert fire(hooks_with(kind(answer))) == verdict


MALFORMED: list[tuple[Any, str]] = [
    ("allow", "must return None or a response dict, got str"),
    (True, "must return None or a response dict, got bool"),
    ({}, "needs an action"),
    ({"action": "deny"}, "needs an action: continue, block, skip, retry; got 'deny'"),
    ({"action": "continue", "modifed": {"args": {}}}, "unknown key 'modifed'"),
    ({"action": "continue", "modified": "x"}, "must be a dict"),
    ({"action": "continue", "modified": {"tool": "read"}}, "may be modified: args"),
    ({"action": "continue", "modified": {"args": "x"}}, "must be a dict, got str"),
    ({"action": "continue", "modified": {"args": {"a": object()}}}, "no JSON data"),
    ({"action": "continue", "modified": {"args": {"a": float("nan")}}}, "no JSON data"),
    ({"action": "continue", "modified": {"args": {"a": "\ud800"}}}, "no JSON data"),
    ({"action": "block", "reason": 5}, "must be text"),
    ({"action": "retry", "delay_ms": -1}, "whole number, 0 or more"),
    ({"action": "retry", "delay_ms": True}, "whole number, 0 or more"),
]


@HANDLERS
@pytest.mark.parametrize(("answer", "fault"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_answer_blocks_and_says_why(kind: type[Handler], answer: Any, fault: str) -> None:
    reason = blocked_reason(fire(hooks_with(kind(answer))))
    assert reason.startswith("Python hook callback failed: 'h0' at pre_tool_use: ")
    assert fault in reason


@HANDLERS
@pytest.mark.parametrize(
    "error",
    [ValueError("boom"), SystemExit(3), asyncio.CancelledError(), StopAsyncIteration()],
    ids=lambda error: type(error).__name__,
)
def test_a_handler_that_raises_blocks_whatever_it_raises(kind: type[Handler], error: BaseException) -> None:
    reason = blocked_reason(fire(hooks_with(kind(raising(error)))))
    assert reason.startswith(f"Python hook callback failed: 'h0' at pre_tool_use: it raised {type(error).__name__}")


def test_a_plain_handler_that_hangs_blocks_in_bounded_time() -> None:
    with hanging() as answer:
        began = time.monotonic()
        reason = blocked_reason(fire(hooks_with(Handler(answer), timeout_ms=25)))
        assert time.monotonic() - began < 5
    assert reason.endswith("it did not respond within 25ms")


def test_an_async_handler_that_does_not_end_when_cancelled_blocks_and_closes_in_bounded_time() -> None:
    over = asyncio.Event()

    async def deaf(_: Any) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                pass

    async def main() -> HookVerdict:
        hooks = hooks_with(deaf, timeout_ms=25)
        verdict = await hooks.fire("pre_tool_use", CALL)
        await hooks.close(grace_ms=25)
        over.set()
        return verdict

    assert blocked_reason(asyncio.run(main())).endswith("it did not respond within 25ms")


def test_an_async_handler_is_cancelled_at_its_timeout() -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def wait(_: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        assert isinstance(await hooks_with(wait, timeout_ms=25).fire("pre_tool_use", CALL), Blocked)
        await ended.wait()

    asyncio.run(main())


def test_an_async_function_in_disguise_blocks_and_nothing_warns_of_it() -> None:
    async def handler(_: Any) -> None:
        return None

    assert "register the `async def` function itself" in blocked_reason(fire(hooks_with(lambda event: handler(event))))
    assert fire(hooks_with(partial(handler))) == Proceed()


# ---- where a hook decides, and where it only hears -----------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("answer", [{"action": "block"}, {"action": "skip"}, {"action": "retry"}, "?"], ids=str)
def test_only_blocking_events_can_be_stopped(event: HookEvent, answer: Any) -> None:
    last = Handler()
    verdict = fire(hooks_with(Handler(answer), last, event=event), event, {"session_id": "s"})
    assert (verdict == Proceed()) == (event not in BLOCKING_EVENTS)
    assert len(last.heard) == (event not in BLOCKING_EVENTS)


@pytest.mark.parametrize("answer", [raising(ValueError("boom")), "?"], ids=["raises", "malformed"])
def test_elsewhere_a_failure_is_logged_and_ignored(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    last = Handler()
    with caplog.at_level(logging.WARNING, logger="fanfold"):
        assert fire(hooks_with(Handler(answer), last, event="post_tool_use"), "post_tool_use") == Proceed()
    assert "Python hook callback failed: 'h0' at post_tool_use" in caplog.text
    assert len(last.heard) == 1


def test_a_prompt_may_be_modified() -> None:
    hooks = hooks_with(Handler({"action": "continue", "modified": {"prompt": "better"}}), event="pre_prompt")
    assert fire(hooks, "pre_prompt", {"session_id": "s", "prompt": "p"}) == Proceed({"prompt": "better"})


# ---- order and what is handed on -----------------------------------------------------------------------------------


def test_lower_priorities_hear_first_and_equal_ones_in_the_order_of_registration() -> None:
    heard: list[str] = []
    hooks = Hooks()
    for name, priority in (("a", 100), ("b", 5), ("c", 100), ("d", -1)):
        handler = Handler(partial(heard.append, name))
        hooks.register(name, "pre_tool_use", config={"priority": priority}, handler=handler)
    fire(hooks)
    assert heard == ["d", "b", "a", "c"]


@pytest.mark.parametrize("answer", [{"action": "block"}, {"action": "skip"}, {"action": "retry"}, "?"], ids=str)
def test_the_first_verdict_that_does_not_proceed_wins(answer: Any) -> None:
    last = Handler({"action": "block", "reason": "later"})
    verdict = fire(hooks_with(Handler(), Handler(answer), last))
    assert verdict != Blocked("later")
    assert not isinstance(verdict, Proceed)
    assert last.heard == []


def test_each_handler_sees_the_payload_as_modified_before_it() -> None:
    first = Handler({"action": "continue", "modified": {"args": {"file_path": "b.txt"}}})
    second = Handler({"action": "continue", "modified": {"args": {"file_path": "c.txt"}}})
    third = Handler()
    assert fire(hooks_with(first, second, third)) == Proceed({"args": {"file_path": "c.txt"}})
    assert [each.heard[0]["args"].get("file_path") for each in (first, second, third)] == ["a.txt", "b.txt", "c.txt"]
    assert CALL["args"]["file_path"] == "a.txt"


def test_a_matcher_is_asked_about_the_modified_payload() -> None:
    hooks = hooks_with(Handler({"action": "continue", "modified": {"args": {"file_path": "secret/a"}}}))
    hooks.register("late", "pre_tool_use", {"path_pattern": "secret/**"}, None, Handler({"action": "block"}))
    assert isinstance(fire(hooks), Blocked)


def test_handlers_get_copies_and_keep_no_hold_on_what_they_answered() -> None:
    mine: dict[str, Any] = {"args": {"list": [1]}}

    def spoil(payload: dict[str, Any]) -> Any:
        payload["args"].clear()
        return {"action": "continue", "modified": mine}

    second = Handler()
    verdict = fire(hooks_with(spoil, second))
    mine["args"]["list"].append(2)
    second.heard[0]["args"].clear()
    assert verdict == Proceed({"args": {"list": [1]}})
    assert CALL["args"] == {"file_path": "a.txt", "content": "x"}


def test_the_event_and_what_is_common_to_all_stand_in_the_payload() -> None:
    handler = Handler()
    hooks = Hooks(common={"tenant_id": "acme"})
    hooks.register("h", "pre_tool_use", handler=handler)
    fire(hooks)
    assert handler.heard == [{**CALL, "tenant_id": "acme", "event_type": "pre_tool_use"}]


def test_plain_handlers_run_in_a_thread_with_the_callers_context_and_async_ones_on_the_loop() -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen: list[tuple[str, bool]] = []

    def note() -> None:
        seen.append((tenant.get(), threading.current_thread() is threading.main_thread()))

    async def main() -> None:
        tenant.set("acme")
        await hooks_with(Handler(note), AsyncHandler(note)).fire("pre_tool_use", CALL)

    asyncio.run(main())
    assert seen == [("acme", False), ("acme", True)]


# ---- matchers -------------------------------------------------------------------------------------------------------


def test_a_hook_hears_only_its_event_and_what_its_matcher_lets_through() -> None:
    handler = Handler()
    hooks = Hooks()
    hooks.register("h", "pre_tool_use", {"tool": "wr*", "session_id": "s"}, None, handler)
    for payload in (CALL, {**CALL, "tool": "read"}, {**CALL, "session_id": "t"}):
        fire(hooks, "pre_tool_use", payload)
    fire(hooks, "post_tool_use")
    assert len(handler.heard) == 1


def test_a_path_pattern_is_compared_with_where_a_path_really_leads() -> None:
    hooks = Hooks(real_path=lambda path: "secret/key" if path == "link" else path)
    hooks.register("h", "pre_tool_use", {"path_pattern": "secret/**"}, None, Handler({"action": "block"}))
    assert isinstance(fire(hooks, payload={**CALL, "args": {"file_path": "link"}}), Blocked)
    assert fire(hooks) == Proceed()


def test_hears_tells_whether_anybody_may_hear() -> None:
    hooks = hooks_with(Handler())
    assert [event for event in EVENTS if hooks.hears(event)] == ["pre_tool_use"]
    hooks.unregister("h0")
    assert not hooks.hears("pre_tool_use")


# ---- retries and what runs beside -----------------------------------------------------------------------------------


@HANDLERS
def test_a_handler_that_raised_is_called_again_as_often_as_its_retries_say(kind: type[Handler]) -> None:
    handler: Handler = kind(lambda: 1 / 0 if len(handler.heard) < 3 else {"action": "skip"})
    assert isinstance(fire(hooks_with(handler, max_retries=1)), Blocked)
    handler.heard.clear()
    assert fire(hooks_with(handler, max_retries=2)) == Skipped()
    assert len(handler.heard) == 3


def test_each_try_gets_a_payload_of_its_own() -> None:
    given: list[dict[str, Any]] = []

    def spoil(payload: dict[str, Any]) -> None:
        given.append(dict(payload["args"]))
        payload["args"].clear()
        if len(given) == 1:
            raise ValueError

    assert fire(hooks_with(spoil, max_retries=1)) == Proceed()
    assert given[0] == given[1] == CALL["args"]


def test_a_malformed_answer_is_not_asked_for_again() -> None:
    handler = Handler("?")
    fire(hooks_with(handler, max_retries=3))
    assert len(handler.heard) == 1


@HANDLERS
def test_a_hook_beside_the_session_is_not_waited_for_and_decides_nothing(kind: type[Handler]) -> None:
    async def main() -> list[Any]:
        handler = kind({"action": "block"})
        hooks = hooks_with(handler, async_execution=True)
        verdict = await hooks.fire("pre_tool_use", CALL)
        at_once = len(handler.heard)
        await hooks.close()
        return [verdict, at_once, len(handler.heard)]

    assert asyncio.run(main()) == [Proceed(), 0, 1]


def test_the_failure_of_a_hook_beside_the_session_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        hooks = hooks_with(AsyncHandler(raising(ValueError("boom"))), async_execution=True)
        await hooks.fire("pre_tool_use", CALL)
        await hooks.close()

    asyncio.run(main())
    assert "it raised ValueError: boom" in caplog.text


# ---- the end --------------------------------------------------------------------------------------------------------


def test_close_cancels_what_does_not_end_in_its_time_of_grace() -> None:
    ended: list[str] = []

    async def for_ever(_: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        hooks = hooks_with(for_ever, async_execution=True)
        await hooks.fire("pre_tool_use", CALL)
        await hooks.close(grace_ms=25)
        await hooks.close(grace_ms=25)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert ended == ["cancelled"]


def test_close_leaves_a_plain_handler_that_hangs_behind() -> None:
    with hanging() as answer:

        async def main() -> None:
            hooks = hooks_with(Handler(answer), async_execution=True)
            await hooks.fire("pre_tool_use", CALL)
            await hooks.close(grace_ms=25)

        asyncio.run(main())


def test_a_hook_may_close_the_hooks_that_it_belongs_to() -> None:
    async def main() -> HookVerdict:
        async def handler(_: Any) -> None:
            await hooks.close(grace_ms=25)

        hooks = hooks_with(handler)
        return await hooks.fire("pre_tool_use", CALL)

    assert asyncio.run(main()) == Proceed()


@pytest.mark.parametrize("event", ["pre_tool_use", "post_tool_use"])
def test_after_the_close_no_handler_is_called_and_blocking_events_are_blocked(event: HookEvent) -> None:
    async def main() -> tuple[HookVerdict, list[Any]]:
        handler = Handler()
        hooks = hooks_with(handler, event=event)
        await hooks.close()
        return await hooks.fire(event, CALL), handler.heard

    verdict, heard = asyncio.run(main())
    assert heard == []
    assert isinstance(verdict, Blocked) == (event == "pre_tool_use")


@HANDLERS
def test_cancelling_the_caller_ends_an_async_handler_and_leaves_a_plain_one(kind: type[Handler]) -> None:
    ended: list[str] = []

    async def wait(_: Any) -> None:
        ended.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async def main(hang: Coroutine[Any, Any, HookVerdict], begun: list[Any]) -> None:
        firing = asyncio.create_task(hang)
        while not begun:
            await asyncio.sleep(0.001)
        firing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await firing

    with hanging() as answer:
        if kind is AsyncHandler:
            asyncio.run(main(hooks_with(wait).fire("pre_tool_use", CALL), ended))
            assert ended == ["begun", "ended"]
        else:
            handler = Handler(answer)
            asyncio.run(main(hooks_with(handler).fire("pre_tool_use", CALL), handler.heard))


# ---- registering ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_can_be_registered_for(event: HookEvent) -> None:
    assert hooks_with(Handler(), event=event).hears(event)


@pytest.mark.parametrize("event", ["pre_tool", "", "PRE_TOOL_USE", "budget_threshold_hit", None, []])
def test_an_unknown_event_is_a_value_error_that_names_those_there_are(event: Any) -> None:
    with pytest.raises(ValueError, match=r"Invalid hook event type: '.*'\. Expected one of: generate_end") as caught:
        hooks_with(Handler(), event=event)
    assert isinstance(caught.value, UsageError)
    assert str(caught.value).startswith(f"Invalid hook event type: '{event}'. ")
    assert all(name in str(caught.value) for name in EVENTS)


NONE: Any = None
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"hook_id": ""}, "hook_id must be a text"),
    ({"hook_id": 5}, "hook_id must be a text"),
    ({"hook_id": "taken"}, "'taken' is registered already"),
    ({"handler": None}, "handler must be a function"),
    ({"handler": "print"}, "handler must be a function"),
    ({"matcher": {"tol": "write"}}, "unknown field `tol`; it has: tool, path_pattern"),
    ({"matcher": {"tool": 5}}, "matcher: Expected `str | null`, got `int`"),
    ({"matcher": "write"}, "matcher: Expected `object`, got `str`"),
    ({"matcher": object()}, "matcher: "),
    ({"config": {"priority": "high"}}, "config: Expected `int`, got `str`"),
    ({"config": {"timeout": 5}}, "unknown field `timeout`"),
    ({"config": {"timeout_ms": 0}}, "timeout_ms must be 1 or more"),
    ({"config": {"max_retries": -1}}, "max_retries 0 or more"),
    ({"config": HookConfig(timeout_ms=NONE)}, "config: Expected `int`, got `null`"),
]


@pytest.mark.parametrize(("given", "fault"), WRONG, ids=range(len(WRONG)))
def test_a_hook_that_cannot_be_meant_so_is_refused(given: dict[str, Any], fault: str) -> None:
    hooks = Hooks()
    hooks.register("taken", "pre_tool_use", handler=Handler())
    with pytest.raises(InvalidHookError) as caught:
        hooks.register(**{"hook_id": "h", "event_type": "pre_tool_use", "handler": Handler(), **given})
    assert fault in str(caught.value)
    assert hooks.count == 1


def test_structs_and_dicts_mean_the_same() -> None:
    for matcher, config in (
        ({"tool": "read"}, {"priority": 1}),
        (HookMatcher(tool="read"), HookConfig(priority=1)),
    ):
        handler = Handler()
        hooks = Hooks()
        hooks.register("h", "pre_tool_use", matcher, config, handler)
        fire(hooks)
        assert handler.heard == []


def test_an_unregistered_hook_hears_nothing_and_its_id_is_free() -> None:
    old, new = Handler(), Handler()
    hooks = hooks_with(old)
    assert (hooks.unregister("h0"), hooks.unregister("h0"), hooks.count) == (True, False, 0)
    hooks.register("h0", "pre_tool_use", handler=new)
    fire(hooks)
    assert (len(old.heard), len(new.heard), hooks.count) == (0, 1, 1)


# ---- hooks within hooks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_is_heard_by_itself_is_blocked_before_no_thread_is_left(is_async: bool) -> None:
    hooks, asked = Hooks(), 0

    async def main() -> HookVerdict:
        loop = asyncio.get_running_loop()

        async def awaited(_: dict[str, Any]) -> Any:
            nonlocal asked
            asked += 1
            return None if isinstance(await hooks.fire("pre_tool_use", CALL), Proceed) else {"action": "skip"}

        def called(payload: dict[str, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(awaited(payload), loop).result()

        hooks.register("h", "pre_tool_use", handler=awaited if is_async else called)
        return await hooks.fire("pre_tool_use", CALL)

    assert isinstance(asyncio.run(main()), Skipped)
    assert asked == MAX_NESTED


def test_what_a_handler_leaves_running_is_not_within_it() -> None:
    hooks, heard, rest = Hooks(), [0], list[asyncio.Task[Any]]()

    async def go_on(_: dict[str, Any]) -> None:
        heard[0] += 1
        if heard[0] < 3 * MAX_NESTED:
            rest.append(asyncio.create_task(later()))

    async def later() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        while hooks_busy.is_set():
            await asyncio.sleep(0)
        assert isinstance(await fire_once(), Proceed)

    async def fire_once() -> HookVerdict:
        hooks_busy.set()
        try:
            return await hooks.fire("pre_tool_use", CALL)
        finally:
            hooks_busy.clear()

    async def main() -> None:
        hooks.register("h", "pre_tool_use", handler=go_on)
        await fire_once()
        while heard[0] < 3 * MAX_NESTED:
            await asyncio.sleep(0)
        await asyncio.gather(*rest)

    hooks_busy = asyncio.Event()
    asyncio.run(main())
