"""What stands in the journal of a run, and when (spec-workflow 5.3, 5.4)."""

import asyncio
import hashlib
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.contracts.codec import encode_json
from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import WorkflowLimits, WorkflowMeta
from fanfold.errors import LogWriteError
from fanfold.kernel.call_identity import CallMeaning, call_identity
from fanfold.testing.memory_runs import Change, MemoryRuns
from fanfold.workflow.agents import BLOB_BYTES
from tests.workflow.rig import TOKENS, Rig, Team, failure
from tests.workflow.test_launch import SCRIPT


def lines_of(rig: Rig, run_id: str) -> list[bytes]:
    data = Path(rig.files.directory, f"{run_id}.journal.jsonl").read_bytes()
    assert data.endswith(b"\n")
    return data.split(b"\n")[:-1]


def test_a_journal_has_all_that_a_reader_needs_to_go_on_with_the_run(tmp_path: Path) -> None:
    async def answer(spec: AgentStepSpec) -> Any:
        return failure(spec, "no luck", duration_ms=7) if spec.prompt == "bad" else {"a": "é\u2028"}

    async def script(ctx: Any, args: Any) -> Any:
        ctx.phase("Look")
        good = lambda: ctx.agent("good", schema={"type": "object"}, label="Good")  # noqa: E731
        return await ctx.parallel([good, lambda: ctx.agent("bad")])

    async def main() -> None:
        rig = Rig(tmp_path, Team(answer))
        rig.register(script, phases=["Look"])
        result = await rig.workflows.run_async("demo", {"x": 1})
        lines = lines_of(rig, result.run_id)
        header, *between, end = (msgspec.json.decode(line) for line in lines)
        for line in lines:
            body, _, tail = line.rpartition(b',"crc":"')
            assert tail == b'%08x"}' % zlib.crc32(body)
        assert (header["t"], header["run_id"], header["workflow"]) == ("header", result.run_id, "demo")
        assert msgspec.convert(header["meta"], WorkflowMeta) == WorkflowMeta(
            name="demo", description="a demo", phases=("Look",)
        )
        assert header["args_sha"] == hashlib.sha256(encode_json({"x": 1})).hexdigest()
        assert (header["attempt"], bool(header["runtime"])) == (1, True)
        identity, written = call_identity(
            CallMeaning(
                prompt="good",
                schema={"type": "object"},
                agent="general",
                agent_sha=hashlib.sha256(b"general").hexdigest(),
                model="test/one",
            )
        )
        begun = {each["seq"]: each for each in between if each["t"] == "started"}
        ended = {each["seq"]: each for each in between if each["t"] == "result"}
        assert list(begun) == list(ended) == [1, 2]
        assert begun[1]["call"] == msgspec.json.decode(written)
        assert (begun[1]["id"], begun[1]["path"]) == (identity, "/0.0#0")
        assert (begun[1]["label"], begun[1]["phase"], begun[1]["attempt"]) == ("Good", "Look", 1)
        assert begun[1]["key"].startswith(result.run_id)
        assert (ended[1]["status"], ended[1]["value"], ended[1]["id"]) == ("ok", {"a": "é\u2028"}, identity)
        assert ended[1]["usage"]["total_tokens"] == TOKENS
        assert (ended[2]["status"], ended[2]["ms"]) == ("error", 7)
        assert ended[2]["error"] == {"code": "NO_ANSWER", "message": "no luck"}
        assert (end["t"], end["attempt"], end["status"]) == ("attempt_end", 1, "completed_with_failures")

    asyncio.run(main())


def test_the_journal_tells_the_script_of_each_attempt(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        texts = [SCRIPT, SCRIPT + "\n# edited\n"]
        run_id: str | None = None
        for text in texts:
            rig.folder.scripts["a.py"] = text
            rig.workflows.approve("filed")
            name = "filed" if run_id is None else None
            run_id = (await rig.workflows.run_async(name, resume_from_run_id=run_id)).run_id
        assert run_id is not None
        records = [msgspec.json.decode(line) for line in lines_of(rig, run_id)]
        headers = [each for each in records if each["t"] == "header"]
        assert [each["script_sha"] for each in headers] == [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        assert [each["attempt"] for each in headers] == [1, 2]

    asyncio.run(main())


def test_that_an_agent_was_started_is_in_the_journal_while_it_runs(tmp_path: Path) -> None:
    async def main() -> None:
        seen: list[list[str]] = []

        async def answer(spec: AgentStepSpec) -> str:
            async with asyncio.timeout(10):
                while len(records := [msgspec.json.decode(line) for line in lines_of(rig, run_ids[0])]) < 2:
                    await asyncio.sleep(0.01)
            seen.append([each["t"] for each in records])
            return "done"

        async def script(ctx: Any, args: Any) -> Any:
            return await ctx.agent("a")

        rig, run_ids = Rig(tmp_path, Team(answer)), list[str]()
        rig.register(script)
        run_ids.append((await rig.workflows.launch_async("demo")).run_id)
        await rig.workflows.wait_async(run_ids[0])
        assert seen == [["header", "started"]]

    asyncio.run(main())


@pytest.mark.parametrize(("size", "is_blob"), [(BLOB_BYTES - 2, False), (BLOB_BYTES - 1, True)])
def test_a_value_beyond_256_kib_is_kept_as_a_file_before_the_journal_names_it(size: int, is_blob: bool) -> None:
    async def answer(spec: AgentStepSpec) -> str:
        return "x" * size

    async def script(ctx: Any, args: Any) -> Any:
        return len(await ctx.agent("a"))

    async def main() -> None:
        changes: list[Change] = []

        async def before(change: Change, run_id: str) -> None:
            changes.append(change)

        files = MemoryRuns(before=before)
        result = await Rig(Path(), Team(answer), files=files).run(script)
        assert (result.value, BLOB_BYTES) == (size, 256 * 1024)
        named = hashlib.sha256(encode_json("x" * size)).hexdigest().encode() in (
            files.journal_bytes(result.run_id) or b""
        )
        assert named is is_blob
        order = [each for each in changes if each in ("append", "put_blob")]
        assert order == ["append", *(["put_blob"] if is_blob else []), "append", "append"]

    asyncio.run(main())


def test_labels_with_separators_in_them_are_no_part_of_what_a_call_means(tmp_path: Path) -> None:
    """And prompts with them are calls of their own, whatever stands on which side."""
    pairs = [("a|b", "c"), ("a", "b|c"), ("a\0b", "c"), ("a", "b\0c"), ("a", "bc")]

    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda pair=pair: ctx.agent(pair[1], label=pair[0]) for pair in pairs])

    async def main() -> None:
        rig = Rig(tmp_path)
        result = await rig.run(script)
        records = [msgspec.json.decode(line) for line in lines_of(rig, result.run_id)]
        calls = {(each["call"]["prompt"], each["id"]) for each in records if each["t"] == "started"}
        assert sorted(prompt for prompt, _ in calls) == sorted({prompt for _, prompt in pairs})
        assert len({identity for _, identity in calls}) == len(calls)
        again = await rig.run(resume_from_run_id=result.run_id)
        assert (again.value, again.counts.cached) == ([f"re: {prompt}" for _, prompt in pairs], 5)

    asyncio.run(main())


def test_an_edit_in_the_middle_of_a_fan_out_costs_that_call_and_what_follows_from_it(tmp_path: Path) -> None:
    def made(edited: str) -> Any:
        async def script(ctx: Any, args: Any) -> Any:
            found = await ctx.pipeline(
                ["a", "b", "c", "d"],
                lambda item: ctx.agent(f"look at {item}{edited if item == 'b' else ''}"),
                lambda found: ctx.agent(f"check {found}"),
            )
            return [*found, await ctx.agent("the end")]

        return script

    async def main() -> None:
        first = await Rig(tmp_path).run(made(""))
        for limits in (WorkflowLimits(concurrency=1), WorkflowLimits(concurrency=7)):
            rig = Rig(tmp_path, limits=limits)
            rig.register(made(" again"))
            forked = await rig.workflows.run_async(resume_from_run_id=first.run_id, fork=True)
            assert rig.team.prompts == ["look at b again", "check re: look at b again"]
            assert (forked.counts.cached, forked.counts.unclaimed) == (7, 2)

    asyncio.run(main())


def test_a_recorded_value_that_the_disk_does_not_give_ends_the_run_and_is_no_empty_slot(tmp_path: Path) -> None:
    async def answer(spec: AgentStepSpec) -> str:
        return "x" * BLOB_BYTES

    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("a"), lambda: 1])

    async def main() -> None:
        rig = Rig(tmp_path, Team(answer))
        first = await rig.run(script)
        (blob,) = [each for each in Path(rig.files.directory, "blobs").iterdir() if each.suffix == ""]
        kept = blob.read_bytes()
        blob.unlink()
        blob.mkdir()
        again = await rig.run(resume_from_run_id=first.run_id)
        assert again.error is not None
        assert (again.status, again.error.code) == ("failed", LogWriteError.code)
        blob.rmdir()
        blob.write_bytes(kept)
        whole = await rig.run(resume_from_run_id=first.run_id)
        assert (whole.status, whole.value, len(rig.team.asked)) == ("completed", first.value, 1)

    asyncio.run(main())
