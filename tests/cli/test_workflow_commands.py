"""`fanfold workflow list`, `show`, `validate`, `approve`: what there is, read without being run."""

import json
from pathlib import Path

import pytest

from tests.cli.workflow_project import TEAM, Fanfold, approve, ready_script, write_script


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def test_the_list_has_each_workflow_with_its_state(fanfold: Fanfold, tmp_path: Path) -> None:
    ready_script(tmp_path)
    write_script(tmp_path, TEAM.replace('"team"', '"other"'), "other")
    broken = write_script(tmp_path, "def", "broken")
    listed = json.loads(fanfold("workflow", "list", "--json").out)
    assert listed["schema"] == "fanfold/workflows/v1"
    found = {each["name"]: each for each in listed["workflows"]}
    assert {"review-changes", "triage", "migrate"} <= set(found)
    assert (found["team"]["kind"], found["team"]["needs_approval"]) == ("file", False)
    assert found["other"]["needs_approval"]
    assert found[str(broken)]["problem"].startswith("is no Python: line 1: ")
    shown = {line.split()[0]: line for line in fanfold("workflow", "list").out.splitlines()}
    assert "ready" in shown["team"]
    assert "needs approval" in shown["other"]
    assert "broken: " in shown[str(broken)]
    assert "shipped" in shown["triage"]


def test_show_tells_phases_arguments_and_where_it_comes_from(fanfold: Fanfold, tmp_path: Path) -> None:
    path = ready_script(tmp_path)
    shown = fanfold("workflow", "show", "team")
    for text in ("team (file): ready", "Ask, Sum", "areas (array): What to ask about", "depth (integer)", str(path)):
        assert text in shown.out
    document = json.loads(fanfold("workflow", "show", "team", "--json").out)
    assert document["schema"] == "fanfold/workflow/v1"
    assert document["args_schema"]["properties"]["depth"] == {"type": "integer"}
    assert "source" not in document


def test_the_source_is_given_as_it_is(fanfold: Fanfold, tmp_path: Path) -> None:
    path = write_script(tmp_path, TEAM)
    assert fanfold("workflow", "show", "team", "--source").out == TEAM
    assert fanfold("workflow", "show", str(path), "--source").out == TEAM
    assert json.loads(fanfold("workflow", "show", "team", "--source", "--json").out)["source"] == TEAM
    assert "META = {" in fanfold("workflow", "show", "triage", "--source").out


def test_a_broken_script_can_be_looked_at(fanfold: Fanfold, tmp_path: Path) -> None:
    path = write_script(tmp_path, "META = {}\n")
    for typed in (str(path), ".a3s/workflows/team.py"):
        shown = fanfold("workflow", "show", typed)
        assert shown.code == 0
        assert "broken: workflow meta" in shown.out
    assert fanfold("workflow", "show", str(path), "--source").out == "META = {}\n"


def test_a_name_that_there_is_not_is_code_4(fanfold: Fanfold) -> None:
    for command in ("show", "validate", "approve", "run"):
        refused = fanfold("workflow", command, "triag")
        assert refused.code == 4, command
        assert "did you mean 'triage'?" in refused.err
        assert "fanfold workflow list" in refused.err
        assert fanfold("workflow", command, "gone.py").code == 4
    error = json.loads(fanfold("workflow", "show", "triag", "--json").err)
    assert error["code"] == "unknown_workflow"


def test_below_a_project_it_is_told_where_its_workflows_and_runs_are(
    fanfold: Fanfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(tmp_path, TEAM)
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert "hint: see: fanfold workflow list -C ../..\n" in fanfold("workflow", "run", "team").err
    assert "hint: see: fanfold workflow list -C ../..\n" in fanfold("workflow", "run", "team.py").err
    assert "hint: see: fanfold runs list -C ../..\n" in fanfold("runs", "show", "x").err
    assert fanfold("runs", "list").err == "there are no workflow runs here yet; see: fanfold runs list -C ../..\n"
    assert fanfold("ps").err == "no workflow runs here just now; see: fanfold runs list -C ../..\n"
    assert fanfold("inbox").err == "nothing waits here; see: fanfold inbox -C ../..\n"
    listed = fanfold("workflow", "list")
    assert listed.err == "those of the project above are not listed here; see: fanfold workflow list -C ../..\n"
    assert "team" not in listed.out
    (tmp_path / "src" / ".git").mkdir()  # what lies above is another project
    assert "hint: see: fanfold workflow list\n" in fanfold("workflow", "run", "team").err


# ---- validate ----


def test_a_sound_script_is_valid_by_name_and_by_path(fanfold: Fanfold, tmp_path: Path) -> None:
    write_script(tmp_path, TEAM)
    (tmp_path / "elsewhere.py").write_text(TEAM)
    for typed in ("team", "elsewhere.py", "triage"):
        checked = fanfold("workflow", "validate", typed)
        assert (checked.code, checked.out, checked.err) == (0, "", "0 errors, 0 warnings\n")


def test_each_fault_is_named_with_its_line(fanfold: Fanfold, tmp_path: Path) -> None:
    hazards = "    import asyncio, time\n    ctx.log(str(time.time()))\n    await asyncio.wait([])\n"
    text = TEAM.replace('    ctx.phase("Ask")\n', hazards)
    path = write_script(tmp_path, text)
    checked = fanfold("workflow", "validate", str(path))
    assert checked.code == 1
    warning, error = checked.out.splitlines()
    assert warning.startswith(f"{path}:19: warning: time.time(): the clock")
    assert error.startswith(f"{path}:20: error: asyncio.wait(): the order")
    assert checked.err == "1 error, 1 warning\n"
    document = json.loads(fanfold("workflow", "validate", "team", "--json").out)  # its name is that of its file
    assert (document["schema"], document["is_valid"]) == ("fanfold/workflow-check/v1", False)
    assert [(each["line"], each["code"]) for each in document["findings"]] == [
        (19, "not_repeatable"),
        (20, "completion_order"),
    ]


def test_warnings_alone_leave_it_valid(fanfold: Fanfold, tmp_path: Path) -> None:
    write_script(tmp_path, TEAM.replace('ctx.phase("Sum")', 'ctx.phase("Sums")'))
    checked = fanfold("workflow", "validate", "team")
    assert (checked.code, checked.err) == (0, "0 errors, 1 warning\n")


@pytest.mark.parametrize(
    ("text", "line", "code", "message"),
    [
        ("x = 1\nMETA = {", 2, "bad_script", "the script is no Python: '{' was never closed"),
        ("x = 1\n\nMETA = dict(name='a')\n", 3, "bad_meta", "META must be a literal"),
        ("x = 1\nMETA = {'name': 'a/b', 'description': 'd'}\n", 2, "bad_meta", "name must be 1 to 64"),
        ("x = 1\n", None, "bad_meta", "has no META"),
        ("META = {'name': 'a', 'description': 'd'}\n", None, "bad_script", "one top-level `async def"),
    ],
)
def test_a_script_that_cannot_be_read_has_its_line(
    fanfold: Fanfold, tmp_path: Path, text: str, line: int | None, code: str, message: str
) -> None:
    (tmp_path / "s.py").write_text(text)
    checked = fanfold("workflow", "validate", "s.py", "--json")
    [finding] = json.loads(checked.out)["findings"]
    assert checked.code == 1
    assert (finding.get("line"), finding["code"]) == (line, code)
    assert message in finding["message"]
    assert "line" not in finding["message"]  # it stands before it


def test_a_script_for_the_sandbox_is_checked_for_it(fanfold: Fanfold, tmp_path: Path) -> None:
    head = 'META = {"name": "s", "description": "d"}\n'
    (tmp_path / "good.py").write_text(f"{head}async def main(ctx, args):\n    return 1\n")
    (tmp_path / "bad.py").write_text(f"{head}async def main(ctx, args):\n    return 1 + 'a'\n")
    assert fanfold("workflow", "validate", "good.py", "--inline").code == 0
    checked = fanfold("workflow", "validate", "bad.py", "--inline")
    assert checked.code == 1
    assert checked.out.startswith("bad.py:3: error: ")


def test_other_errors_of_a_script_for_the_sandbox_are_named_too(fanfold: Fanfold, tmp_path: Path) -> None:
    lines = ["ctx.now()", 'ctx.agent("x")', "await asyncio.wait([])", "import time", "return time.time()"]
    head = 'import asyncio\nMETA = {"name": "s", "description": "d"}\nasync def main(ctx, args):'
    (tmp_path / "s.py").write_text("\n    ".join([head, *lines]))
    checked = fanfold("workflow", "validate", "s.py", "--inline")
    assert [line.split(": ", 2)[:2] for line in checked.out.splitlines()] == [["s.py:5", "error"], ["s.py:6", "error"]]
    assert "line 6" not in checked.out
    typed = 'await ctx.agent("x") + 1', 'ctx.agent("x")', "open('f')", "return await ctx.now()"
    (tmp_path / "s.py").write_text("\n    ".join([head, *typed]))
    checked = fanfold("workflow", "validate", "s.py", "--inline")
    assert [line.split(": ", 2)[0] for line in checked.out.splitlines()] == ["s.py:5", "s.py:6", "s.py:7"]


def test_a_file_that_is_no_text_is_refused(fanfold: Fanfold, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_bytes(b"a = 1\n\xff")
    assert (fanfold("workflow", "validate", "s.py").code, fanfold("workflow", "validate", ".").code) == (2, 2)
    assert "s.py:2: not UTF-8 text" in fanfold("workflow", "validate", "s.py").err
    (tmp_path / "d.py").mkdir()
    assert "cannot read d.py: Is a directory" in fanfold("workflow", "validate", "d.py").err


# ---- approve ----


def test_an_approval_is_of_the_text_as_it_stands(fanfold: Fanfold, tmp_path: Path) -> None:
    path = write_script(tmp_path, TEAM)
    refused = fanfold("workflow", "approve", "team")
    assert refused.code == 2
    assert "nobody can be asked here" in refused.err
    assert "fanfold workflow approve team --yes" in refused.err
    done = fanfold("workflow", "approve", "team", "--yes")
    assert done.code == 0
    assert str(path) in done.err
    assert "needs no approval" in fanfold("workflow", "approve", "team").err
    path.write_text(TEAM + "# changed\n")
    assert fanfold("workflow", "approve", "team").code == 2
    path.write_text(TEAM)
    assert fanfold("workflow", "approve", "team").code == 0


def test_who_approves_is_told_what_validate_finds_and_decides(fanfold: Fanfold, tmp_path: Path) -> None:
    path = write_script(tmp_path, TEAM.replace('    ctx.phase("Ask")\n', '    ctx.agent("x")\n'))
    for arguments, code in (((), 2), (("--yes",), 0)):
        done = fanfold("workflow", "approve", "team", *arguments)
        assert done.code == code
        assert f"{path}:18: error: ctx.agent() is not awaited" in done.err
    assert "error" not in fanfold("workflow", "approve", "team").err


def test_a_script_outside_of_the_project_needs_one_too(fanfold: Fanfold, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(TEAM)
    refused = fanfold("workflow", "approve", "s.py")
    assert refused.code == 2
    assert f"fanfold workflow approve {tmp_path / 's.py'} --yes" in refused.err
    assert fanfold("workflow", "approve", "s.py", "--yes").code == 0
    assert "has been approved as it stands" in fanfold("workflow", "approve", "./s.py").err
    (tmp_path / "t.py").write_text(TEAM)  # the same text elsewhere is another one
    assert fanfold("workflow", "approve", "t.py").code == 2


def test_what_comes_with_fanfold_needs_none(fanfold: Fanfold) -> None:
    assert "it comes with fanfold" in fanfold("workflow", "approve", "triage").err


def test_its_source_is_shown_before_the_question(fanfold: Fanfold, tmp_path: Path) -> None:
    write_script(tmp_path, TEAM)
    assert fanfold("workflow", "approve", "team", "--source").out == TEAM
    assert fanfold("workflow", "approve", "team", "--source", "--yes").out == TEAM


def test_the_project_cannot_vouch_for_itself(fanfold: Fanfold, tmp_path: Path) -> None:
    path = write_script(tmp_path, TEAM)
    approve(tmp_path / "other", path)
    assert fanfold("workflow", "approve", "team").code == 2
    assert not list((tmp_path / ".a3s").rglob("approved*"))
