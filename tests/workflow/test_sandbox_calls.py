"""What crosses between the thread of a sandbox and our loop, without a sandbox."""

import asyncio
from typing import Any

import pytest

from fanfold.contracts.codec import decode_json, encode_json
from fanfold.errors import SandboxError
from fanfold.workflow.sandbox_calls import Asked, SandboxCalls
from tests.workflow.sandbox_host import NotingHost


def calls_of(host: NotingHost) -> SandboxCalls:
    def end(error: BaseException) -> None:
        raise AssertionError from error

    return SandboxCalls(host, end, max_pending_bytes=1_000, max_errors=10)


def asked(kind: str, value: Any, call_id: int | None = None) -> Asked:
    return Asked(kind, encode_json(value).decode(), call_id)


def test_the_host_hears_in_the_order_of_asking_though_the_loop_was_busy() -> None:
    async def main() -> None:
        host = NotingHost()
        calls = calls_of(host)
        calls.begin(asked("agent", ["#0", None, "first", {}], 1))
        calls.post(asked("phase", "second"))
        calls.begin(asked("workflow", ["/0:x", None, "third", None], 2))
        calls.post(asked("phase", "fourth"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert [each[3] if len(each) > 2 else each[1] for each in host.asked] == ["first", "second", "third", "fourth"]
        await calls.close()

    asyncio.run(main())


def test_all_that_has_settled_is_handed_over_at_once() -> None:
    async def main() -> None:
        calls = calls_of(NotingHost())
        for number in range(3):
            calls.begin(asked("agent", [f"#{number}", None, f"{'fail' if number == 1 else 'x'}", {}], number))
        for _ in range(5):
            await asyncio.sleep(0)
        settled = calls.settled()
        assert set(settled) == {0, 1, 2}
        assert decode_json(str(settled[0])) == "re: x"
        assert settled[1] == [0, "RuntimeError", "agent 'fail' failed: it was told to", False]
        assert calls.error_that_reads("RuntimeError", "agent 'fail' failed: it was told to") is not None
        assert calls.error_that_reads("RuntimeError", "another") is None
        await calls.close()

    asyncio.run(main())


def test_nobody_waits_for_the_loop_of_a_sandbox_that_was_killed() -> None:
    async def main() -> None:
        calls = calls_of(NotingHost())
        calls.wake()
        for _ in range(3):
            with pytest.raises(SandboxError):
                calls.settled()
            with pytest.raises(SandboxError):
                calls.answer(asked("random", "?0"))
        await calls.close()

    asyncio.run(main())


def test_nothing_is_begun_any_more_once_it_is_closed() -> None:
    async def main() -> None:
        host = NotingHost()
        calls = calls_of(host)
        calls.begin(asked("agent", ["#0", None, "late", {}], 1))
        calls.post(asked("phase", "late"))
        await calls.close()
        for _ in range(5):
            await asyncio.sleep(0)
        assert host.asked == []

    asyncio.run(main())
