"""The budget guard's decisions (seed 003), row by row; and that a guard which misbehaves denies, in bounded time."""

import asyncio
import contextvars
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fanfold.contracts.governance import BudgetAllowed, BudgetDecision, BudgetDenial, BudgetSoft
from fanfold.contracts.messages import Usage
from fanfold.errors import UsageError
from fanfold.governance.budget import BudgetGate
from fanfold.governance.callback_threads import MAX_LEFT_BEHIND

USAGE = Usage(prompt_tokens=7, completion_tokens=3, total_tokens=10, cache_read_tokens=2, cache_write_tokens=1)
INFINITE: Any = float("inf")


class Guard:
    """Answers each check with `answer`, or with what it returns; keeps what it was asked."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
        return self._answered(session_id, estimated_tokens)

    def check_before_tool(self, session_id: str, tool_name: str) -> Any:
        return self._answered(session_id, tool_name)

    def record_after_llm(self, session_id: str, usage: dict[str, Any]) -> None:
        self._answered(session_id, usage)

    def _answered(self, *args: Any) -> Any:
        self.asked.append(args)
        return self.answer() if callable(self.answer) else self.answer


def before_llm(guard: object, timeout_ms: int = 5_000) -> BudgetDecision:
    return asyncio.run(BudgetGate(guard, timeout_ms).before_llm("s", 100))


def before_tool(guard: object, timeout_ms: int = 5_000) -> BudgetDecision:
    return asyncio.run(BudgetGate(guard, timeout_ms).before_tool("s", "write"))


def denial_of(decision: BudgetDecision) -> BudgetDenial:
    assert isinstance(decision, BudgetDenial)
    return decision


def raising(error: BaseException) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


@contextmanager
def hanging() -> Iterator[Callable[[], Any]]:
    """An answer that does not come before the block ends."""
    over = threading.Event()
    try:
        yield lambda: over.wait(20) and None
    finally:
        over.set()


CHECKS = pytest.mark.parametrize("check", [before_llm, before_tool], ids=["llm", "tool"])


# ---- the table of seed 003, row by row -----------------------------------------------------------------------------


@CHECKS
@pytest.mark.parametrize("answer", [None, {"decision": "allow"}], ids=["row_1_none", "row_1_allow"])
def test_row_1_none_and_allow_go_on(check: Any, answer: Any) -> None:
    assert check(Guard(answer)) == BudgetAllowed()


@CHECKS
@pytest.mark.parametrize("message", [{}, {"message": "half of it"}, {"message": None}], ids=["none", "text", "null"])
def test_row_2_soft_goes_on_and_carries_what_its_event_tells(check: Any, message: Any) -> None:
    answer = {"decision": "soft", "resource": "tokens", "consumed": 80, "limit": 100.5, **message}
    expected = BudgetSoft(resource="tokens", consumed=80.0, limit=100.5, message=message.get("message"))
    assert check(Guard(answer)) == expected


@CHECKS
def test_row_3_deny_refuses_with_its_resource_and_reason(check: Any) -> None:
    decision = check(Guard({"decision": "deny", "resource": "tokens", "reason": "monthly cap reached"}))
    assert decision == BudgetDenial(resource="tokens", reason="monthly cap reached")
    assert str(decision) == "Budget exhausted on 'tokens': monthly cap reached"


@CHECKS
@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("k"), SystemExit(3), KeyboardInterrupt(), StopIteration()]
)
def test_row_4_a_check_that_raises_denies(check: Any, error: BaseException) -> None:
    denial = denial_of(check(Guard(raising(error))))
    assert denial.resource == "budget_guard_callback"
    method = "check_before_llm" if check is before_llm else "check_before_tool"
    assert denial.reason.startswith(f"Python BudgetGuard.{method} raised {type(error).__name__}")


MALFORMED: list[Any] = [
    "allow",
    True,
    0,
    [],
    ("decision", "allow"),
    {},
    {"decision": None},
    {"decision": "maybe"},
    {"decision": "Allow"},
    {"decision": True},
    {"resource": "tokens", "reason": "no decision"},
    {"decision": "deny"},
    {"decision": "deny", "resource": "tokens"},
    {"decision": "deny", "reason": "no resource"},
    {"decision": "deny", "resource": 5, "reason": "x"},
    {"decision": "deny", "resource": "tokens", "reason": None},
    {"decision": "soft"},
    {"decision": "soft", "resource": "tokens"},
    {"decision": "soft", "resource": "tokens", "consumed": 1},
    {"decision": "soft", "resource": None, "consumed": 1, "limit": 2},
    {"decision": "soft", "resource": "tokens", "consumed": "1", "limit": 2},
    {"decision": "soft", "resource": "tokens", "consumed": True, "limit": 2},
    {"decision": "soft", "resource": "tokens", "consumed": 1, "limit": INFINITE},
    {"decision": "soft", "resource": "tokens", "consumed": INFINITE - INFINITE, "limit": 2},
    {"decision": "soft", "resource": "tokens", "consumed": 10**400, "limit": 2},
    {"decision": "soft", "resource": "tokens", "consumed": 1, "limit": 2, "message": 5},
]


@CHECKS
@pytest.mark.parametrize("answer", MALFORMED, ids=range(len(MALFORMED)))
def test_row_5_a_malformed_answer_denies(check: Any, answer: Any) -> None:
    denial = denial_of(check(Guard(answer)))
    assert denial.resource == "budget_guard_error"
    method = "check_before_llm" if check is before_llm else "check_before_tool"
    assert denial.reason.startswith(f"invalid Python BudgetGuard.{method} return: ")


@CHECKS
def test_row_6_a_check_that_takes_too_long_denies_in_bounded_time(check: Any) -> None:
    with hanging() as answer:
        began = time.monotonic()
        denial = denial_of(check(Guard(answer), timeout_ms=25))
        assert time.monotonic() - began < 5
    assert denial.resource == "budget_guard_timeout"
    assert denial.reason.endswith(" did not respond within 25ms")


def test_row_6_the_time_counts_from_each_check_anew() -> None:
    with hanging() as answer:
        guard: Guard = Guard(lambda: answer() if len(guard.asked) == 1 else None)

        async def main() -> list[BudgetDecision]:
            gate = BudgetGate(guard, 200)
            return [await gate.before_llm("s", 1), await gate.before_llm("s", 2)]

        first, second = asyncio.run(main())
    assert denial_of(first).resource == "budget_guard_timeout"
    assert second == BudgetAllowed()


@pytest.mark.parametrize("lacks", ["no such method", "set to None"])
def test_row_7_a_missing_method_allows(lacks: str) -> None:
    class OnlyTool:
        def check_before_tool(self, session_id: str, tool_name: str) -> Any:
            return {"decision": "deny", "resource": "tools", "reason": tool_name}

    guard: Any = OnlyTool()
    if lacks == "set to None":
        guard.check_before_llm = None
    assert before_llm(guard) == BudgetAllowed()
    assert before_tool(guard) == BudgetDenial(resource="tools", reason="write")
    asyncio.run(BudgetGate(guard).after_llm("s", USAGE))


def test_row_8_a_recording_that_raises_or_hangs_is_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def record(guard: object) -> None:
        gate = BudgetGate(guard, 25)
        for _ in range(3):
            await gate.after_llm("s", USAGE)

    with caplog.at_level(logging.WARNING, logger="fanfold"), hanging() as answer:
        asyncio.run(record(Guard(raising(ValueError("the meter is down")))))
        asyncio.run(record(Guard(answer)))
    assert [each.getMessage().removesuffix("; ignored, from now on silently") for each in caplog.records] == [
        "Python BudgetGuard.record_after_llm raised ValueError: the meter is down",
        "Python BudgetGuard.record_after_llm did not respond within 25ms",
    ]


def test_row_9_no_guard_allows_and_starts_no_thread() -> None:
    async def main() -> set[threading.Thread]:
        gate = BudgetGate(None)
        before = set(threading.enumerate())
        assert await gate.before_llm("s", 1) == await gate.before_tool("s", "write") == BudgetAllowed()
        await gate.after_llm("s", USAGE)
        return set(threading.enumerate()) - before

    assert asyncio.run(main()) == set()


# ---- how it is asked ------------------------------------------------------------------------------------------------


def test_a_guard_is_told_the_session_the_tokens_the_tool_and_the_usage() -> None:
    guard = Guard()

    async def main() -> None:
        gate = BudgetGate(guard)
        await gate.before_llm("s", 100)
        await gate.before_tool("s", "write")
        await gate.after_llm("s", USAGE)

    asyncio.run(main())
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "cache_read_tokens": 2,
        "cache_write_tokens": 1,
    }
    assert guard.asked == [("s", 100), ("s", "write"), ("s", usage)]


def test_what_was_recorded_is_noted_before_the_next_check() -> None:
    class Meter:
        used = 0

        def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
            over = {"decision": "deny", "resource": "tokens", "reason": f"{self.used} used"}
            return over if self.used >= 10 else None

        def record_after_llm(self, session_id: str, usage: dict[str, Any]) -> None:
            self.used += usage["total_tokens"]

    async def main() -> list[BudgetDecision]:
        gate = BudgetGate(Meter())
        first = await gate.before_llm("s", 1)
        await gate.after_llm("s", USAGE)
        return [first, await gate.before_llm("s", 1)]

    assert asyncio.run(main()) == [BudgetAllowed(), BudgetDenial(resource="tokens", reason="10 used")]


def test_a_check_runs_in_another_thread_with_the_callers_context() -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen: list[tuple[str, bool]] = []
    guard = Guard(lambda: seen.append((tenant.get(), threading.current_thread() is threading.main_thread())))

    async def main() -> None:
        tenant.set("acme")
        await BudgetGate(guard).before_llm("s", 1)

    asyncio.run(main())
    assert seen == [("acme", False)]


def test_a_guard_may_be_replaced_and_cleared() -> None:
    deny = {"decision": "deny", "resource": "r", "reason": "no"}

    async def main() -> list[BudgetDecision]:
        gate = BudgetGate()
        answers = [await gate.before_llm("s", 1)]
        for guard in (Guard(deny), None):
            gate.replace(guard, 5_000)
            answers.append(await gate.before_llm("s", 1))
        return answers

    assert asyncio.run(main()) == [BudgetAllowed(), BudgetDenial(resource="r", reason="no"), BudgetAllowed()]


@pytest.mark.parametrize("timeout_ms", [0, -1, True, 1.5, "5", None, 10**400])
def test_a_timeout_that_is_none_is_refused_and_the_guard_stays(timeout_ms: Any) -> None:
    deny = {"decision": "deny", "resource": "r", "reason": "no"}
    gate = BudgetGate(Guard(deny))
    with pytest.raises(UsageError, match="timeout_ms must be a whole number, 1 or more"):
        gate.replace(None, timeout_ms)
    assert denial_of(asyncio.run(gate.before_llm("s", 1))).resource == "r"


def test_a_guard_without_any_of_the_methods_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Misspelt:
        def check_before_LLM(self, session_id: str, tokens: int) -> Any:
            return {"decision": "deny", "resource": "r", "reason": "no"}

    assert before_llm(Misspelt()) == BudgetAllowed()
    assert "budget guard Misspelt has none of check_before_llm" in caplog.text


# ---- guards that misbehave ------------------------------------------------------------------------------------------


def test_an_attribute_that_raises_denies_whatever_it_raises() -> None:
    class Broken:
        @property
        def check_before_llm(self) -> Any:
            raise AttributeError("no connection")

        @property
        def check_before_tool(self) -> Any:
            raise SystemExit(1)

    assert denial_of(before_llm(Broken())) == BudgetDenial(
        resource="budget_guard_callback",
        reason="Python BudgetGuard.check_before_llm raised AttributeError: no connection",
    )
    assert denial_of(before_tool(Broken())).resource == "budget_guard_callback"


def test_an_attribute_that_hangs_denies_in_bounded_time() -> None:
    with hanging() as answer:

        class Slow:
            @property
            def check_before_llm(self) -> Any:
                return answer()

        assert denial_of(before_llm(Slow(), 25)).resource == "budget_guard_timeout"


@pytest.mark.parametrize("dunder", ["__getattr__", "__getattribute__"])
def test_a_guard_that_passes_its_calls_on_is_asked(dunder: str) -> None:
    real = Guard({"decision": "deny", "resource": "r", "reason": "no"})

    def pass_on(self: object, name: str) -> Any:
        if name == "check_before_tool":
            raise AttributeError(name)
        return getattr(real, name)

    proxy: Any = type("Proxy", (), {dunder: pass_on})()
    assert denial_of(before_llm(proxy)).resource == "r"
    assert before_tool(proxy) == BudgetAllowed()


def test_a_class_in_place_of_its_object_denies() -> None:
    assert denial_of(before_llm(Guard)).resource == "budget_guard_callback"


def test_an_attribute_that_cannot_be_called_denies() -> None:
    guard: Any = Guard()
    guard.check_before_llm = 5
    assert denial_of(before_llm(guard)).resource == "budget_guard_callback"


def test_an_async_check_denies_and_nothing_warns_of_it(caplog: pytest.LogCaptureFixture) -> None:
    class Async:
        async def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
            return {"decision": "allow"}

        async def record_after_llm(self, session_id: str, usage: dict[str, Any]) -> None:
            return None

    denial = denial_of(before_llm(Async()))
    assert denial.resource == "budget_guard_error"
    assert "a coroutine; guard methods are plain functions" in denial.reason
    asyncio.run(BudgetGate(Async()).after_llm("s", USAGE))
    assert "it is async and was not run" in caplog.text


def test_an_error_that_cannot_be_shown_denies_all_the_same() -> None:
    class Unshowable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    denial = denial_of(before_llm(Guard(raising(Unshowable()))))
    assert denial.reason == "Python BudgetGuard.check_before_llm raised Unshowable: (it has no text)"


def test_texts_that_no_log_could_hold_are_made_plain() -> None:
    decision = before_llm(Guard({"decision": "deny", "resource": "a\ud800", "reason": "b\udfff"}))
    assert decision == BudgetDenial(resource="a\ufffd", reason="b\ufffd")
    assert denial_of(before_llm(Guard({"decision": "\ud800"}))).reason.encode()
    assert denial_of(before_llm(Guard(raising(ValueError("\ud800"))))).reason.encode()


# ---- threads --------------------------------------------------------------------------------------------------------


def test_one_callback_that_hangs_makes_none_of_sixty_three_others_wait() -> None:
    with hanging() as answer:

        class OneHangs:
            def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
                return answer() if session_id == "s7" else None

        async def main() -> list[BudgetDecision]:
            gate = BudgetGate(OneHangs(), 1_000)
            return await asyncio.gather(*(gate.before_llm(f"s{n}", 1) for n in range(64)))

        decisions = asyncio.run(main())
    assert [n for n, decision in enumerate(decisions) if decision != BudgetAllowed()] == [7]
    assert denial_of(decisions[7]).resource == "budget_guard_timeout"


def callback_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "fanfold-callback"]


def test_no_thread_outlives_its_call() -> None:
    async def main() -> None:
        gate = BudgetGate(Guard())
        for _ in range(50):
            await gate.before_llm("s", 1)

    asyncio.run(main())
    for thread in callback_threads():
        thread.join(5)
    assert callback_threads() == []


def test_an_answer_that_came_in_time_counts_though_the_loop_was_late_to_look() -> None:
    async def main() -> BudgetDecision:
        asking = asyncio.create_task(BudgetGate(Guard(), 25).before_llm("s", 1))
        await asyncio.sleep(0)
        over = time.monotonic() + 0.1
        for thread in callback_threads():
            thread.join(5)
        while time.monotonic() < over:  # the loop is held up beyond the timeout
            pass
        return await asking

    assert asyncio.run(main()) == BudgetAllowed()


def test_a_late_answer_is_ignored_and_the_next_check_is_a_new_one() -> None:
    over = threading.Event()
    guard: Guard = Guard(lambda: over.wait(20) and None if len(guard.asked) == 1 else {"decision": "allow"})

    async def main() -> list[BudgetDecision]:
        gate = BudgetGate(guard, 200)
        late = await gate.before_llm("s", 1)
        over.set()
        for thread in callback_threads():
            await asyncio.to_thread(thread.join, 5)
        await asyncio.sleep(0)
        return [late, await gate.before_llm("s", 2)]

    late, next_one = asyncio.run(main())
    assert denial_of(late).resource == "budget_guard_timeout"
    assert next_one == BudgetAllowed()


def test_a_guard_that_always_hangs_is_not_given_threads_without_end_and_recovers() -> None:
    over = threading.Event()
    guard = Guard(lambda: over.wait(20) and None)

    async def main() -> tuple[BudgetDecision, BudgetDecision]:
        gate = BudgetGate(guard, 25)
        await asyncio.gather(*(gate.before_llm("s", 1) for _ in range(MAX_LEFT_BEHIND)))
        refused = await gate.before_llm("s", 1)
        gate.replace(guard, 5_000)
        over.set()
        return refused, await gate.before_llm("s", 1)

    refused, answered = asyncio.run(main())
    assert denial_of(refused).resource == "budget_guard_unavailable"
    assert len(guard.asked) == MAX_LEFT_BEHIND + 1
    assert answered == BudgetAllowed()


def test_places_come_back_when_the_calls_that_were_left_behind_return() -> None:
    over = threading.Event()

    async def main() -> tuple[BudgetDecision, BudgetDecision]:
        gate = BudgetGate(Guard(lambda: over.wait(20) and None), 500)
        await asyncio.gather(*(gate.before_llm("s", 1) for _ in range(MAX_LEFT_BEHIND)))
        refused = await gate.before_llm("s", 1)
        over.set()
        for thread in callback_threads():
            await asyncio.to_thread(thread.join, 5)
        await asyncio.sleep(0)
        return refused, await gate.before_llm("s", 1)

    refused, answered = asyncio.run(main())
    assert denial_of(refused).resource == "budget_guard_unavailable"
    assert answered == BudgetAllowed()


def test_cancelling_the_caller_does_not_wait_for_the_callback() -> None:
    with hanging() as answer:

        async def main() -> None:
            guard = Guard(answer)
            asking = asyncio.create_task(BudgetGate(guard).before_llm("s", 1))
            while not guard.asked:
                await asyncio.sleep(0.001)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

        asyncio.run(main())


def test_a_callback_that_hangs_does_not_hang_the_exit() -> None:
    script = (
        "import asyncio, threading\n"
        "from fanfold.governance.budget import BudgetGate\n"
        "class Guard:\n"
        "    def check_before_llm(self, session_id, estimated_tokens):\n"
        "        threading.Event().wait()\n"
        "print(asyncio.run(BudgetGate(Guard(), 25).before_llm('s', 1)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "did not respond within 25ms" in done.stdout
