"""`fanfold runs delete` and `prune`: who is asked, what is refused, what is gone."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fanfold.cli.runs_deleting import size_text
from fanfold.contracts.codec import encode_json
from fanfold.contracts.workflow_runs import WorkflowSnapshot
from fanfold.stores.run_files import open_run_files
from tests.cli.conftest import ServerThread, configure
from tests.cli.workflow_project import Fanfold, Model, only_run, ready_script, runs_of

Serve = Callable[..., ServerThread]
OLD, NEW = 1, 4_000_000_000_000
"""Unix ms, before and behind whenever this runs."""
IDS = [f"wf_a_{number:016x}" for number in range(9)]


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def make_runs(workspace: Path, *changed_ms: int, status: Any = "completed", untold: Sequence[int] = ()) -> None:
    """Runs that have ended, the latest first, and those of these numbers untold."""

    async def made() -> None:
        files = open_run_files(workspace)
        for number, at_ms in enumerate(changed_ms):
            held = await files.create(IDS[number])
            snapshot = WorkflowSnapshot(
                run_id=held.run_id,
                task_id="t",
                workflow="a",
                kind="file",
                args={},
                status=status,
                started_ms=1_000 - number,
                updated_ms=at_ms,
            )
            await held.write_snapshot(encode_json(snapshot))
            await held.release()
        for number in untold:
            await files.put_notice("s-1", IDS[number], b'{"id":"x","text":"y"}')

    asyncio.run(made())


def left(fanfold: Fanfold) -> list[int]:
    return [IDS.index(each["run_id"]) for each in runs_of(fanfold)]


# ---- delete ----


def test_a_deleted_run_is_gone_with_all_its_files(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    fanfold("workflow", "run", "team")
    run = only_run(fanfold)
    done = fanfold("runs", "delete", run[-6:], "--yes")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith(f"deleted {run}\nfreed ")
    assert done.err.endswith(" kB\n")
    assert runs_of(fanfold) == []
    assert [path.name for path in (tmp_path / ".a3s" / "workflow-runs").rglob("*") if path.is_file()] == []
    for command in (("runs", "show"), ("workflow", "resume"), ("runs", "delete", "--yes"), ("logs",)):
        assert fanfold(*command, run).code == 4


def test_several_are_deleted_at_once_and_told_to_programs(fanfold: Fanfold, tmp_path: Path) -> None:
    make_runs(tmp_path, OLD, OLD, OLD)
    document = json.loads(fanfold("runs", "delete", IDS[0], IDS[2], IDS[0], "--yes", "--json").out)
    assert document.pop("freed_bytes") > 0
    assert document == {"schema": "fanfold/runs-deleted/v1", "runs": [IDS[0], IDS[2]], "left": []}
    assert left(fanfold) == [1]


def test_nothing_is_deleted_where_one_of_them_is_refused(fanfold: Fanfold, tmp_path: Path) -> None:
    make_runs(tmp_path, OLD, OLD, untold=[1])
    held = asyncio.run(open_run_files(tmp_path).hold(IDS[0]))
    running = fanfold("runs", "delete", IDS[1], IDS[0], "--untold", "--yes")
    assert running.code == 8
    assert f"workflow stop {IDS[0]}" in running.err
    asyncio.run(held.release())
    untold = fanfold("runs", "delete", IDS[0], IDS[1], "--yes")
    assert untold.code == 2
    assert f"run {IDS[1]} has not been told of its end" in untold.err
    assert "--untold" in untold.err
    assert json.loads(fanfold("runs", "delete", IDS[1], "--yes", "--json").err)["code"] == "untold"
    assert fanfold("runs", "delete", IDS[0], "gone", "--yes").code == 4
    assert fanfold("runs", "delete", "wf_a_", "--yes").code == 2
    assert left(fanfold) == [0, 1]
    assert fanfold("runs", "delete", IDS[0], IDS[1], "--untold", "--yes").code == 0
    assert left(fanfold) == []
    assert asyncio.run(open_run_files(tmp_path).notices("s-1")) == ()


def test_an_empty_name_means_no_run(fanfold: Fanfold, tmp_path: Path) -> None:
    make_runs(tmp_path, OLD)
    for command in (("runs", "delete", "", "--yes"), ("runs", "show", ""), ("workflow", "resume", ""), ("logs", "")):
        done = fanfold(*command)
        assert done.code == 4
        assert "there is no workflow run '' here\n" in done.err
    assert left(fanfold) == [0]


def test_where_nobody_can_be_asked_deleting_wants_a_yes(fanfold: Fanfold, tmp_path: Path) -> None:
    make_runs(tmp_path, OLD)
    for command in (("delete", IDS[0]), ("prune", "--keep", "0")):
        refused = fanfold("runs", *command)
        assert refused.code == 2
        assert "--yes" in refused.err
    assert left(fanfold) == [0]


def test_a_run_that_cannot_be_read_is_deleted_too(fanfold: Fanfold, tmp_path: Path) -> None:
    make_runs(tmp_path, OLD)
    (tmp_path / ".a3s" / "workflow-runs" / f"{IDS[0]}.json").write_text("{")
    assert fanfold("runs", "delete", IDS[0], "--yes").code == 0
    assert left(fanfold) == []


# ---- prune ----


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--keep", "2"), [0, 1]),
        (("--older-than", "30"), [0, 2]),
        (("--keep", "2", "--older-than", "30"), [0, 1, 2]),
        (("--keep", "0"), []),
        (("--keep", "9"), [0, 1, 2, 3]),
    ],
)
def test_a_run_that_nothing_keeps_is_pruned(
    fanfold: Fanfold, tmp_path: Path, options: Sequence[str], expected: list[int]
) -> None:
    make_runs(tmp_path, NEW, OLD, NEW, OLD)
    gone = [number for number in range(4) if number not in expected]
    dry = fanfold("runs", "prune", *options, "--dry-run")
    assert [line.split()[0] for line in dry.out.splitlines()[2:]] == [IDS[number] for number in gone]
    assert dry.err == "nothing was deleted\n"
    document = json.loads(fanfold("runs", "prune", *options, "--dry-run", "--json").out)
    assert (document["is_dry_run"], document["runs"]) == (True, [IDS[number] for number in gone])
    assert left(fanfold) == [0, 1, 2, 3]
    done = fanfold("runs", "prune", *options, "--yes")
    assert (done.code, "no run is to be deleted" in done.err) == (0, not gone)
    assert left(fanfold) == expected


@pytest.mark.parametrize("status", ["running", "completed", "completed_with_failures", "failed", "stopped", "paused"])
def test_whatever_nobody_runs_is_pruned(fanfold: Fanfold, tmp_path: Path, status: str) -> None:
    make_runs(tmp_path, OLD, status=status)
    assert fanfold("runs", "prune", "--older-than", "1", "--yes").code == 0
    assert left(fanfold) == []


def test_prune_leaves_what_runs_what_is_untold_and_what_cannot_be_read(fanfold: Fanfold, tmp_path: Path) -> None:
    make_runs(tmp_path, OLD, OLD, OLD, OLD, untold=[2])
    (tmp_path / ".a3s" / "workflow-runs" / f"{IDS[3]}.json").write_text("{")
    held = asyncio.run(open_run_files(tmp_path).hold(IDS[1]))
    document = json.loads(fanfold("runs", "prune", "--keep", "0", "--dry-run", "--json").out)
    assert document["runs"] == [IDS[0]]
    assert [(each["run_id"], each["code"]) for each in document["left"]] == [(IDS[2], "untold")]
    done = fanfold("runs", "prune", "--keep", "0", "--yes")
    assert f"deleted {IDS[0]}\nfreed " in done.err
    assert f"fanfold runs delete --untold {IDS[2]}" in done.err
    assert sorted(left(fanfold)) == [1, 2, 3]
    asyncio.run(held.release())


def test_prune_has_to_be_told_which_runs_may_go(fanfold: Fanfold, tmp_path: Path) -> None:
    make_runs(tmp_path, OLD)
    for options in ((), ("--yes",), ("--keep", "-1"), ("--older-than", "x")):
        assert fanfold("runs", "prune", *options).code == 2
    assert left(fanfold) == [0]


def test_where_there_are_no_runs_nothing_is_made(fanfold: Fanfold, tmp_path: Path) -> None:
    assert fanfold("runs", "prune", "--keep", "0").err == "no run is to be deleted\n"
    assert not (tmp_path / ".a3s").exists()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (999_999, "1.0 MB"),
        (2_500_000_000, "2.5 GB"),
    ],
)
def test_a_size_is_told_in_its_unit(count: int, text: str) -> None:
    assert size_text(count) == text


def test_what_earlier_deletions_could_not_sweep_goes_with_the_next_prune(fanfold: Fanfold, tmp_path: Path) -> None:
    make_runs(tmp_path, OLD)
    blob = tmp_path / ".a3s" / "workflow-runs" / "blobs" / ("a" * 64)
    blob.parent.mkdir()
    blob.write_bytes(b"x" * 50)
    assert fanfold("runs", "prune", "--keep", "1", "--dry-run").code == 0
    assert blob.exists()
    assert fanfold("runs", "prune", "--keep", "1").err == "freed 50 bytes\n"
    assert not blob.exists()
    assert left(fanfold) == [0]


# ---- files that are no files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".json", ".lock"])
def test_one_run_that_cannot_be_read_hides_no_other_one(fanfold: Fanfold, tmp_path: Path, suffix: str) -> None:
    make_runs(tmp_path, OLD, OLD)
    link_away(tmp_path, IDS[0] + suffix)
    listed = {each["run_id"]: each for each in runs_of(fanfold)}
    assert {run_id: each["status"] for run_id, each in listed.items()} == {IDS[0]: "unreadable", IDS[1]: "completed"}
    assert (
        f"cannot read {tmp_path / '.a3s' / 'workflow-runs' / (IDS[0] + suffix)}: it is a symbolic link"
        in (listed[IDS[0]]["problem"])
    )
    assert f"note: {IDS[0]} cannot be read: cannot read " in fanfold("inbox").err
    assert f"it may be in what could not be seen: {IDS[0]} cannot be read: " in fanfold("approve", "call_7").err
    assert fanfold("ps").code == 0
    refused = fanfold("runs", "delete", IDS[0], "--yes")
    assert refused.code == 1
    assert "it is a symbolic link" in refused.err
    assert fanfold("runs", "prune", "--keep", "0", "--yes").code == 0
    assert left(fanfold) == [0]
    assert (tmp_path / "elsewhere").is_dir()


def test_a_link_in_place_of_a_folder_is_followed_by_no_deletion(fanfold: Fanfold, tmp_path: Path) -> None:
    make_runs(tmp_path, OLD, OLD)
    link_away(tmp_path, "blobs")
    (tmp_path / "elsewhere" / ("a" * 64)).touch()
    refused = fanfold("runs", "delete", IDS[0], "--yes")
    assert refused.code == 1
    assert "blobs is a symbolic link" in refused.err
    assert "hint: the runs that could be are deleted; " in refused.err
    assert fanfold("runs", "prune", "--keep", "0", "--yes").code == 1
    assert left(fanfold) == []
    assert (tmp_path / "elsewhere" / ("a" * 64)).exists()


def test_a_run_is_deleted_untold_only_where_it_is_untold(fanfold: Fanfold, tmp_path: Path) -> None:
    make_runs(tmp_path, OLD)
    link_away(tmp_path, "outbox")
    refused = fanfold("runs", "delete", IDS[0], "--yes")
    assert refused.code == 1
    assert "outbox is a symbolic link" in refused.err
    assert "--untold" not in refused.err
    assert left(fanfold) == [0]


def link_away(workspace: Path, name: str) -> None:
    (workspace / "elsewhere").mkdir()
    path = workspace / ".a3s" / "workflow-runs" / name
    path.unlink(missing_ok=True)
    path.symlink_to(workspace / "elsewhere")
