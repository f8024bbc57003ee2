"""A disk that refuses a write, whichever: the run ends as failed, and gives nobody what is not recorded (7.33)."""

import asyncio
import hashlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.codec import encode_json
from fanfold.contracts.run_journal import Result, Started
from fanfold.contracts.workflow_runs import WorkflowLimits, WorkflowResult
from fanfold.errors import LogWriteError, WorkflowInputError
from fanfold.kernel.run_journal import decode_line, read_run_journal
from fanfold.testing.memory_runs import Change, MemoryRuns
from fanfold.testing.virtual_loop import VirtualLoop, run_virtually, virtual_env
from fanfold.workflow.journal import NEWS_SECONDS
from fanfold.workflow.runs import run_summary
from tests.workflow.rig import META, Rig
from tests.workflow.workers import ALL, Script, Workers, edition, inner, opened, recorded

KINDS: tuple[Change, ...] = (
    "create",
    "append",
    "put_blob",
    "write_snapshot",
    "write_output",
    "put_notice",
    "append_events",
)


class Refusing:
    """Refuses the `number`th change of a kind, or all from there on."""

    def __init__(self, kind: Change, number: int, *, stays: bool) -> None:
        self.kind = kind
        self.number = number
        self.stays = stays
        self.came = 0

    @property
    def has_refused(self) -> bool:
        return self.came >= self.number

    async def __call__(self, change: Change, run_id: str) -> None:
        if change == self.kind:
            self.came += 1
            if self.came == self.number or (self.stays and self.has_refused):
                raise LogWriteError(path=run_id, reason="No space left on device")


class Witness:
    """Wraps the context of a script: what is given to the script is in the journal by then."""

    def __init__(self, ctx: Any, files: MemoryRuns, *, swallows: bool) -> None:
        self._ctx = ctx
        self._swallows = swallows
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    async def agent(self, prompt: str, **options: Any) -> Any:
        try:
            value = await self._ctx.agent(prompt, **options)
        except Exception:
            if self._swallows:
                return "none"
            raise
        (run_id,) = await self._files.run_ids()
        journal = self._files.journal_bytes(run_id) or b""
        written = encode_json(value)
        assert written in journal or hashlib.sha256(written).hexdigest().encode() in journal, "it is not recorded"
        return value


async def refused_once(kind: Change, number: int, *, stays: bool, swallows: bool) -> bool:
    """True when the run came to that change; what follows is that it ends as it should, and can be gone on with."""
    disk = Refusing(kind, number, stays=stays)
    files = MemoryRuns(before=disk)
    workers = Workers("a", pace=1.0)
    rig = Rig(Path(), workers, files=files, limits=WorkflowLimits(concurrency=4), env=virtual_env())

    def witnessed(script: Script) -> Script:
        return lambda ctx, args: script(Witness(ctx, files, swallows=swallows), args)

    rig.register(witnessed(edition(2)))
    rig.register(witnessed(inner), name="inner")
    result: WorkflowResult | None = None
    code = "store_unwritable"
    try:
        launch = await rig.workflows.launch_async(META["name"], events=rig.events.append, notify=True)
    except WorkflowInputError as error:
        code = error.code
        assert rig.events == []
    else:
        result = await rig.workflows.wait_async(launch.run_id)
        notification = rig.notification()
        assert notification["status"] == result.status
        if (
            not disk.has_refused
            or kind == "append_events"
            or (result.status == "completed" and kind == "write_snapshot")
        ):
            assert (result.status, workers.turns) == ("completed", ALL)
        else:
            assert result.status == "failed"
            assert result.error is not None
            assert result.error.code == LogWriteError.code
            assert "No space left" in result.error.message
    assert code == "store_unwritable"
    calm = files.another_process()
    for run_id in await calm.run_ids():
        summary = await run_summary(calm, run_id)
        assert not summary.is_alive
        if summary.snapshot is None:
            continue
        if result is not None and not (stays and kind == "write_snapshot"):
            assert summary.status == result.status
        turns, _ = recorded(files.journal_bytes(run_id) or b"", run_id)
        again = Workers("b")
        other = opened(Path(), again, files=calm)
        if result is not None:
            (notice,) = await other.notices.pending()
            assert f"<status>{result.status}</status>" in notice.text
            assert "Traceback" not in notice.text
        whole = await other.workflows.run_async(resume_from_run_id=run_id, strict=True)
        assert (whole.status, again.turns) == ("completed", ALL - turns)
        (notice,) = await other.notices.pending()
        assert notice.id == f"{run_id}-2"
        assert "<status>completed</status>" in notice.text
    return disk.has_refused


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_is_refused_ends_the_run_as_failed_and_gives_nobody_its_value(
    kind: Change, stays: bool, swallows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for number in itertools.count(1):
        loop = VirtualLoop()  # always the same order of things
        try:
            has_refused = loop.run_until_complete(refused_once(kind, number, stays=stays, swallows=swallows))
            assert loop.unhandled == []
        finally:
            loop.wind_down()
        if not has_refused:
            break
    print(f"{number - 1} places of {kind}")
    assert number > 1
    assert [record for record in caplog.records if record.exc_info] == []


def test_what_was_started_is_recorded_though_the_disk_refused_to_hear_of_it() -> None:
    async def script(ctx: Any, args: Any) -> Any:
        async def later() -> Any:
            await asyncio.sleep(2 * NEWS_SECONDS)
            return await ctx.agent("work later")

        return await ctx.parallel([lambda: ctx.agent("work"), later])

    async def main() -> None:
        files = MemoryRuns(before=Refusing("append", 2, stays=False))  # the first is that of the header
        rig = Rig(Path(), Workers("a", pace=1.0), files=files, env=virtual_env())
        rig.register(script)
        result = await rig.workflows.run_async(META["name"])
        assert result.status == "completed"
        lines = (files.journal_bytes(result.run_id) or b"").split(b"\n")[:-1]
        records = [decode_line(line) for line in lines]
        started = [record.seq for record in records if isinstance(record, Started)]
        assert sorted(started) == [record.seq for record in records if isinstance(record, Result)] == [1, 2]
        assert read_run_journal(lines, result.run_id, strict=True).rejected_lines == ()

    run_virtually(main())
