"""`fanfold ps`: the runs that some process holds just now, and none of those that only say so."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fanfold.contracts.codec import encode_json
from fanfold.contracts.workflow_runs import RunCounts, WorkflowSnapshot
from fanfold.stores.run_files import open_run_files
from tests.cli.conftest import Ended

Fanfold = Callable[..., Ended]


def snapshot(run_id: str, **more: object) -> bytes:
    fields = {"workflow": "team", "kind": "file", "args": {}, "started_ms": 1, "updated_ms": 2}
    return encode_json(
        WorkflowSnapshot(run_id=run_id, task_id=f"t_{run_id}", status="running", **{**fields, **more})  # type: ignore[arg-type]
    )


async def held(tmp_path: Path, number: int, *, is_held: bool, **more: object) -> None:
    files = open_run_files(tmp_path)
    run = await files.create(f"wf_team_{number:016x}")
    if more:
        await run.write_snapshot(snapshot(run.run_id, **more))
    if not is_held:
        await run.release()


def test_only_runs_that_somebody_holds_are_listed(fanfold: Fanfold, tmp_path: Path) -> None:
    async def seen() -> tuple[Ended, Ended]:
        await held(
            tmp_path, 1, is_held=True, counts=RunCounts(launched=5, done=3, failed=1, cached=7), phase="Ask", process=42
        )
        await held(tmp_path, 2, is_held=False, phase="Ask")
        await held(tmp_path, 3, is_held=True)
        return await asyncio.to_thread(fanfold, "ps", "--json"), await asyncio.to_thread(fanfold, "ps")

    machine, people = asyncio.run(seen())
    document = json.loads(machine.out)
    assert document["schema"] == "fanfold/ps/v1"
    first, second = sorted(document["runs"], key=lambda each: str(each["run_id"]))
    assert (first["run_id"], first["phase"], first["process"]) == ("wf_team_0000000000000001", "Ask", 42)
    assert first["counts"]["done"] == 3
    assert (second["run_id"], second["status"]) == ("wf_team_0000000000000003", "unreadable")
    rows = {line.split()[0]: line for line in people.out.splitlines()}
    assert "3/5 done, 7 cached, 1 failed" in rows["wf_team_0000000000000001"]
    assert "(it begins)" in rows["wf_team_0000000000000003"]


def test_where_nothing_runs_it_says_so(fanfold: Fanfold) -> None:
    assert fanfold("ps").err == "no workflow runs here just now; see: fanfold runs list\n"
    assert json.loads(fanfold("ps", "--json").out)["runs"] == []


def test_it_loads_nothing_that_looking_does_not_need(tmp_path: Path) -> None:
    code = "import sys; from fanfold.cli.main import run; run(['ps']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "fanfold.workflow.runs" in loaded
    assert loaded & {"aiohttp", "rich", "jsonschema_rs", "difflib", "fanfold.agent", "fanfold.session.session"} == set()
