"""`fanfold checkpoints`: what is recorded is listed, shown and deleted, and never by looking at it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.stores.file_store import FileSessionStore
from fanfold.stores.sqlite_store import SqliteSessionStore
from tests.cli.conftest import Ended, ServerThread, configure, start
from tests.cli.test_asking import OnTerminal
from tests.support.chat_server import Call, Json, Say

Fanfold = Callable[..., Ended]
Serve = Callable[..., ServerThread]
LOGS = Path(".a3s/sessions/workflow")


def answer(asked: Json) -> Say:
    last = asked["messages"][-1]
    if last["role"] == "tool":
        return Say("late", delay_seconds=30)
    if last["content"] == "look":
        return Say(calls=(Call("ls"),))
    return Say("half", stop="content_filter") if last["content"] == "fail" else Say(f"{last['content']} is\nfine")


def write(workspace: Path, *prompts: str) -> None:
    steps = [{"task_id": prompt, "agent": "explore", "prompt": prompt} for prompt in prompts]
    (workspace / "specs.json").write_text(json.dumps(steps))


def record(fanfold: Fanfold, serve: Serve, workspace: Path, *workflow_ids: str) -> None:
    """One step done and one failed, for each of these workflows."""
    configure(workspace, serve(answer))
    write(workspace, "api", "fail")
    for each in workflow_ids:
        assert fanfold("parallel", "specs.json", "--workflow", each).code == 7


def test_there_may_be_none_and_looking_makes_no_store(fanfold: Fanfold, tmp_path: Path) -> None:
    done = fanfold("checkpoints", "list")
    assert (done.code, done.out, done.err) == (0, "", "there are no checkpoints here\n")
    assert json.loads(fanfold("checkpoints", "list", "--json").out) == {
        "schema": "fanfold/checkpoints/v1",
        "checkpoints": [],
    }
    assert fanfold("checkpoints", "show", "w").code == 4
    assert fanfold("checkpoints", "delete", "w", "--yes").code == 4
    assert not (tmp_path / ".a3s").exists()


def test_the_list_counts_what_each_workflow_has(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    record(fanfold, serve, tmp_path, "nightly", "audit/1")
    lines = fanfold("checkpoints", "list").out.splitlines()
    assert lines[0].split() == ["workflow", "changed", "done", "failed", "unfinished", "tokens"]
    assert [(line.split()[0], line.split()[2:]) for line in lines[2:]] == [
        ("audit/1", ["1", "1", "0", "40"]),
        ("nightly", ["1", "1", "0", "40"]),
    ]
    [first, _] = json.loads(fanfold("checkpoints", "list", "--json").out)["checkpoints"]
    assert (first["workflow_id"], first["succeeded"], first["failed"]) == ("audit/1", 1, 1)


def test_a_checkpoint_is_shown_step_by_step(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    record(fanfold, serve, tmp_path, "nightly")
    *table, totals = fanfold("checkpoints", "show", "nightly").out.splitlines()
    assert [line.split(maxsplit=3) for line in table[2:]] == [
        ["api", "done", "20", "api is"],
        ["fail", "failed", "20", "Task failed: the provider's content filter stopped the answer"],
    ]
    assert totals.startswith("nightly: 1 done, 1 failed, 0 unfinished; 40 tokens; changed 20")
    document = json.loads(fanfold("checkpoints", "show", "nightly", "--json").out)
    assert (document["schema"], document["schema_version"]) == ("fanfold/checkpoint/v1", 1)
    assert document["steps"][0]["outcome"]["output"] == "api is\nfine"
    assert document["steps"][0]["result_receipt"]["outcome"] == "succeeded"


def test_its_cost_is_shown_where_the_model_has_a_price(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve(answer)
    (tmp_path / "agent.acl").write_text(
        f"""
        default_model = "fake/m1"
        providers "fake" {{
          base_url = "{server.server.base_url}"
          models "m1" {{ cost = {{ input = 1000, output = 2000 }} }}
        }}
        """
    )
    write(tmp_path, "api", "fail")
    fanfold("parallel", "specs.json", "--workflow", "nightly")
    # Two calls of 12 and 8 tokens, by prices for a million of them.
    assert "; 40 tokens, $0.0560; " in fanfold("checkpoints", "show", "nightly").out


def test_a_running_workflow_can_be_looked_at_and_not_deleted(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve(answer)
    configure(tmp_path, server)
    write(tmp_path, "look")
    process = start("parallel", "specs.json", "--workflow", "nightly", cwd=tmp_path)
    try:
        server.wait_for_requests(2)
        shown = fanfold("checkpoints", "show", "nightly").out
        assert shown.splitlines()[2].split(maxsplit=2) == ["look", "unfinished", "goes on from its last recorded turn"]
        done = fanfold("checkpoints", "delete", "nightly", "--yes")
        assert done.code == 8
        assert f"workflow 'nightly' is already active in process {process.pid}" in done.err
    finally:
        process.kill()
        process.communicate()
    assert fanfold("checkpoints", "delete", "nightly", "--yes").err == "deleted nightly\n"
    assert json.loads(fanfold("checkpoints", "list", "--json").out)["checkpoints"] == []


def test_an_unknown_id_names_the_nearest_one(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    record(fanfold, serve, tmp_path, "nightly", "other")
    for command in (("show", "nigthly"), ("delete", "nigthly", "--yes"), ("delete", "other", "nigthly", "--yes")):
        done = fanfold("checkpoints", *command)
        assert done.code == 4
        assert done.err == "fanfold: there is no checkpoint 'nigthly' here; did you mean 'nightly'?\n"
    assert len(list((tmp_path / LOGS).glob("*.jsonl"))) == 2


def test_deleting_asks_or_wants_to_be_told(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    record(fanfold, serve, tmp_path, "a", "b")
    done = fanfold("checkpoints", "delete", "a")
    assert done.code == 2
    assert "--yes" in done.err
    assert fanfold("checkpoints", "delete", "a", "b", "a", "--yes").err == "deleted a\ndeleted b\n"


def test_on_a_terminal_only_a_clear_yes_deletes(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    record(fanfold, serve, tmp_path, "a")
    for typed, is_there in (("\n", True), ("no\n", True), ("y\n", False)):
        terminal = OnTerminal("checkpoints", "delete", "a", cwd=tmp_path)
        try:
            terminal.wait_for("Forget all that a finished? [y/N]")
            terminal.type(typed)
            assert terminal.end() == 0
            assert ("nothing was deleted" in terminal.shown) == is_there
        finally:
            terminal.close()
        assert (tmp_path / LOGS / "a.jsonl").exists() == is_there


def test_what_cannot_be_resumed_is_listed_with_the_reason_refused_and_can_be_deleted(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    record(fanfold, serve, tmp_path, "good", *["spoilt"] * 3)

    async def copy() -> None:
        async with FileSessionStore(tmp_path / ".a3s/sessions") as store:
            await store.append("workflow/stolen", 0, list(await store.read("workflow/good")))

    asyncio.run(copy())
    spoilt = tmp_path / LOGS / "spoilt.jsonl"
    first, second, *rest = spoilt.read_bytes().split(
        b'"k":"specs"'
    )  # in the middle: damage at its end would be a torn end
    spoilt.write_bytes(b'"k":"specs"'.join([first, second, *(b" " + each for each in rest)]))
    listed = fanfold("checkpoints", "list").out
    assert "it is keyed to 'good', not 'stolen'" in listed
    assert "log 'workflow/spoilt' is corrupt" in listed
    for command in (("checkpoints", "show", "stolen"), ("parallel", "specs.json", "--workflow", "stolen")):
        done = fanfold(*command)
        assert done.code == 1
        assert "workflow checkpoint cannot be resumed: it is keyed to 'good', not 'stolen'" in done.err
        assert "to begin anew: fanfold checkpoints delete stolen" in done.err
    assert fanfold("checkpoints", "delete", "stolen", "spoilt", "--yes").code == 0
    assert fanfold("checkpoints", "list").out.splitlines()[2].split()[0] == "good"


@pytest.mark.parametrize("name", ["kept.sqlite", "kept.db"])
def test_a_database_is_a_store_too(fanfold: Fanfold, serve: Serve, tmp_path: Path, name: str) -> None:
    record(fanfold, serve, tmp_path, "nightly")

    async def copy() -> None:
        async with (
            FileSessionStore(tmp_path / ".a3s/sessions") as files,
            SqliteSessionStore(tmp_path / name) as database,
        ):
            await database.append("workflow/nightly", 0, list(await files.read("workflow/nightly")))

    asyncio.run(copy())
    for command in (("list",), ("show", "nightly")):
        assert fanfold("checkpoints", *command, "--store", name).out == fanfold("checkpoints", *command).out
    assert fanfold("checkpoints", "delete", "nightly", "--store", name, "--yes").code == 0
    assert fanfold("checkpoints", "list", "--store", name).err == "there are no checkpoints here\n"
    assert fanfold("checkpoints", "list", "--store", ".a3s/sessions").out != ""


def test_a_store_that_is_named_has_to_be_there(fanfold: Fanfold, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no store")
    done = fanfold("checkpoints", "list", "--store", "gone.sqlite")
    assert (done.code, done.err) == (4, "fanfold: there is no session store at gone.sqlite\n")
    assert not (tmp_path / "gone.sqlite").exists()
    done = fanfold("checkpoints", "list", "--store", "notes.txt")
    assert done.code == 2
    assert "--store notes.txt: neither a directory nor a file named .db, .sqlite, .sqlite3" in done.err


def test_the_workspace_says_where_they_are(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    record(fanfold, serve, tmp_path, "nightly")
    (tmp_path / "empty").mkdir()
    assert fanfold("checkpoints", "show", "nightly", "-C", "empty").code == 4
