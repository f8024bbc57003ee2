"""`--plan`: what `parallel --workflow` and `map` would do, told without doing any of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold.cli.plan_text import PlanLine, plan_text
from tests.cli.conftest import Ended, ServerThread, configure
from tests.support.chat_server import Call, Http, Json, Say

Fanfold = Callable[..., Ended]
Serve = Callable[..., ServerThread]

WORKFLOW = ("parallel", "specs.json", "--workflow", "nightly")


def first_run(asked: Json) -> Say | Http:
    """Each step's prompt says what becomes of it."""
    last = asked["messages"][-1]
    if last["role"] == "tool":
        return Http(status=500)
    if last["content"] == "look":
        return Say(calls=(Call("ls"),))
    return Say("half", stop="content_filter") if "fail" in last["content"] else Say(last["content"].upper())


def write(workspace: Path, *prompts: str, **more: Any) -> None:
    """Steps `s1`, `s2`, ... of these prompts."""
    steps = [
        {"task_id": f"s{number}", "agent": "explore", "prompt": prompt, **more}
        for number, prompt in enumerate(prompts, 1)
    ]
    (workspace / "specs.json").write_text(json.dumps(steps))


def state_of(workspace: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in workspace.rglob("*") if path.is_file()}


# ---- parallel ----------------------------------------------------------------------------------------------


def test_a_plan_names_what_is_cached_runs_again_or_is_new(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve(first_run)
    configure(tmp_path, server, max_attempts=1)
    write(tmp_path, "one", "two\nlines\nof text", "fail", "dropped")
    fanfold(*WORKFLOW)
    before, asked = state_of(tmp_path), len(server.prompts)

    write(tmp_path, "one", "two\nlines\nof words", "fail")
    steps = json.loads((tmp_path / "specs.json").read_text())
    steps.append({"task_id": "added", "agent": "answer", "prompt": "more"})
    (tmp_path / "specs.json").write_text(json.dumps(steps))
    before[str(tmp_path / "specs.json")] = (tmp_path / "specs.json").read_bytes()
    done = fanfold(*WORKFLOW, "--plan")
    assert done.code == 0
    assert [line.split("  ")[0] for line in done.out.splitlines()[:-1]] == [
        "task",
        "─────",
        "s1",
        "s2",
        "",
        "",
        "s3",
        "added",
    ]
    assert done.out.splitlines()[-1].startswith("1 cached, 2 re-run, 1 new: about 5")
    assert done.out.endswith(" tokens (80 already spent)\n")
    table = {line.split()[0]: line.split() for line in done.out.splitlines()[2:-1]}
    assert table["s1"] == ["s1", "cached", "recorded", "0"]
    assert table["s2"] == ["s2", "re-run", "prompt", "changed", "20"]
    assert table["s3"][:4] == ["s3", "re-run", "failed", "before:"]
    assert table["added"][:4] == ["added", "new", "not", "recorded"]
    assert "\n    -of text\n    +of words\n" in done.out
    assert done.err == "note: 1 recorded steps are not asked for any more; they stay recorded\n"
    assert state_of(tmp_path) == before
    assert len(server.prompts) == asked


def test_a_plan_needs_no_model_no_key_and_no_configuration(fanfold: Fanfold, tmp_path: Path) -> None:
    (tmp_path / "agent.acl").write_text("nonsense")
    write(tmp_path, "one", model="nowhere/m")
    done = fanfold(*WORKFLOW, "--plan", "--json")
    assert done.code == 0
    assert json.loads(done.out)["steps"][0]["action"] == "new"
    assert not (tmp_path / ".a3s").exists()


def test_the_plan_as_json_is_that_of_the_library(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(first_run))
    write(tmp_path, "one", "fail")
    fanfold(*WORKFLOW)
    document = json.loads(fanfold(*WORKFLOW, "--plan", "--json").out)
    assert {name: document[name] for name in ("schema", "workflow_id", "dropped", "spent_tokens")} == {
        "schema": "fanfold/plan/v1",
        "workflow_id": "nightly",
        "dropped": [],
        "spent_tokens": 40,
    }
    assert [(step["task_id"], step["action"]) for step in document["steps"]] == [("s1", "cached"), ("s2", "re-run")]


def test_a_strict_plan_ends_as_the_strict_run_would(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(first_run))
    write(tmp_path, "one", "fail")
    fanfold(*WORKFLOW)
    assert fanfold(*WORKFLOW, "--plan", "--strict").code == 0
    write(tmp_path, "another", "fail")
    done = fanfold(*WORKFLOW, "--plan", "--strict")
    assert (done.code, fanfold(*WORKFLOW, "--strict").code) == (2, 2)
    assert "-one" in done.out
    assert "'s1' changed since\nhint: without --strict they run again\n" in done.err


def test_a_plan_has_no_events(fanfold: Fanfold, tmp_path: Path) -> None:
    write(tmp_path, "one")
    assert "a plan has no events for --jsonl" in fanfold(*WORKFLOW, "--plan", "--jsonl").err
    (tmp_path / "a.txt").write_text("a")
    assert "a plan has no events for --jsonl" in fanfold("map", "a.txt", "--prompt", "x", "--plan", "--jsonl").err


# ---- map ---------------------------------------------------------------------------------------------------


def test_the_plan_of_a_map_names_what_is_answered_and_what_would_run(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    server = serve(first_run)
    configure(tmp_path, server)
    (tmp_path / "bad.txt").write_bytes(b"\0")
    command = ("map", "-", "bad.txt", "--prompt", "{item}", "--then", "then {previous}")
    fanfold(*command, stdin="one\nfail\n")
    before, asked = state_of(tmp_path), len(server.prompts)
    done = fanfold(*command, "--plan", "--out", "out.csv", stdin="one\nfail\nfresh\nfresh\n")
    assert done.code == 0
    assert [line.split("  ")[0] for line in done.out.splitlines()[2:-1]] == ["one", "fail", "fresh", "fresh", "bad.txt"]
    assert [line.split()[1] for line in done.out.splitlines()[2:-1]] == [
        "cached", "re-run", "new", "cached", "unreadable"
    ]  # fmt: skip
    assert "equal to item 3, asked once" in done.out
    assert done.out.splitlines()[-1] == ("2 cached, 1 re-run, 1 new, 1 unreadable: about 80 tokens (60 already spent)")
    assert state_of(tmp_path) == before
    assert len(server.prompts) == asked


def test_a_chain_that_broke_off_continues_and_costs_its_rest(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve(
        lambda asked: first_run(asked) if "then" not in asked["messages"][-1]["content"] else Http(status=500)
    )
    configure(tmp_path, server, max_attempts=1)
    command = ("map", "-", "--prompt", "{item}", "--then", "then {previous}", "--concurrency", "1")
    fanfold(*command, "--budget", "20", stdin="one\n")
    [row] = json.loads(fanfold(*command, "--plan", "--json", stdin="one\n").out)["rows"]
    assert row["action"] == "re-run"
    assert row["reason"].startswith("failed before: Task failed: Budget exhausted")
    assert 500 < row["estimated_tokens"] < 600


def test_the_plan_of_a_map_needs_no_key(fanfold: Fanfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "agent.acl").write_text('default_model = "openai/x"\n')
    done = fanfold("map", "-", "agent.acl", "--prompt", "{item}", "--plan", "--json", stdin="a\n")
    document = json.loads(done.out)
    assert (done.code, document["schema"], document["unreadable"]) == (0, "fanfold/map-plan/v1", [])
    assert [row["key"] for row in document["rows"]] == ["a", "agent.acl"]
    assert not (tmp_path / ".a3s").exists()


def test_what_would_be_refused_is_refused_by_the_plan_too(fanfold: Fanfold) -> None:
    assert fanfold("map", "-", "--prompt", "{gone}", "--plan", stdin="a\n").code == 2
    done = fanfold("map", "-", "--prompt", "{item}", "--plan", "--fresh", stdin="a\n")
    assert (done.code, "nothing to plan" in done.err) == (2, True)


# ---- its text ----------------------------------------------------------------------------------------------


def test_a_plan_is_cut_to_a_terminal_and_whole_elsewhere() -> None:
    changes = [f"-{'old ' * 40}{number}" for number in range(30)]
    lines = [PlanLine("a" * 100, "re-run", "prompt changed", 12_345, changes)]
    narrow = plan_text("task", lines, spent_tokens=4_020, width=80).splitlines()
    assert max(map(len, narrow)) == 80
    assert narrow[-2] == "    … and 10 more changed lines"
    assert narrow[-1] == "1 re-run: about 12k tokens (4k already spent)"
    whole = plan_text("task", lines, spent_tokens=0, width=None)
    assert all(f"    {change}\n" in whole for change in changes)
