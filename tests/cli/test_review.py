"""`fanfold review`: from the changes of a repository to a report, an exit code, and a run that can be gone on with."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended, ServerThread, configure, ended, start
from tests.cli.test_review_changes import commit, git, write
from tests.support.chat_server import Call, Http, Json, Say

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="git needs a POSIX system"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]
Fanfold = Callable[..., Ended]
Serve = Callable[..., ServerThread]
ONE = ("review", "--dimension", "security")


def prompt_of(asked: Json) -> str:
    return next(str(each["content"]) for each in reversed(asked["messages"]) if each["role"] == "user")


def finding(title: str, line: int = 1, severity: str = "high") -> Json:
    more = {"file": "a.py", "line": line, "severity": severity}
    return {"title": title, "detail": "why", "suggestion": "fix", **more}


class Model:
    """Auditors find `found`, each dimension the same; of the verifiers those of `wrong` titles say that it is none."""

    def __init__(self, *found: Json, wrong: tuple[str, ...] = ()) -> None:
        self.found = found
        self.wrong = wrong
        self.audits: list[str] = []
        self.verified: list[str] = []

    def __call__(self, asked: Json) -> Say | Http:
        prompt = prompt_of(asked)
        if claim := re.search(r"<claim>\n\| (.*) \((\w+)\)\n", prompt):
            self.verified.append(claim[1])
            verdict = {"reason": f"of {claim[1]}", "is_real": claim[1] not in self.wrong, "severity": claim[2]}
            return Say(json.dumps(verdict))
        self.audits.append(prompt)
        return Say(json.dumps({"findings": list(self.found)}))


@pytest.fixture
def repo(tmp_path: Path, serve: Serve) -> Callable[[Any], ServerThread]:
    """A repository with one committed file and one change of it, served by a model."""

    def made(model: Any) -> ServerThread:
        server = serve(model)
        git(tmp_path, "init", "--quiet", "--initial-branch=main")
        (tmp_path / ".gitignore").write_text(".a3s/\nagent.acl\nhome/\n")
        write(tmp_path, a_py="one\n")
        commit(tmp_path, "begin")
        write(tmp_path, a_py="two\n")
        configure(tmp_path, server, max_attempts=1)
        return server

    return made


# ---- what is told ---------------------------------------------------------------------------------------------------


def test_confirmed_findings_are_shown_and_the_rest_is_counted(fanfold: Fanfold, repo: Any) -> None:
    model = Model(finding("Leak"), finding("Guess", 50), wrong=("Guess",))
    repo(model)
    done = fanfold(*ONE)
    assert (done.code, done.out.splitlines()) == (
        0,
        [
            "severity  place   problem  found by",
            "────────  ──────  ───────  ────────",
            "high      a.py:1  Leak     security",
        ],
    )
    said = done.err.splitlines()
    assert said[0] == "reviewing 1 file: uncommitted changes"
    assert said[-2] == "1 confirmed (1 high), 1 rejected"
    details = re.fullmatch(r"details: fanfold (review --resume wf_review-changes_\w+ --format markdown)", said[-1])
    assert details is not None
    asked = len(model.audits) + len(model.verified)
    assert "## 1. high: Leak\n" in fanfold(*details[1].split()).out
    assert len(model.audits) + len(model.verified) == asked
    assert any("audit:security" in line for line in said)
    assert "\n     1 +two\n" in model.audits[0]


def test_all_dimensions_are_asked_about_by_default(fanfold: Fanfold, repo: Any) -> None:
    model = Model()
    repo(model)
    done = fanfold("review")
    assert (done.code, done.out, len(model.audits)) == (0, "", 8)
    assert done.err.endswith("0 confirmed\n")


def test_the_last_commit_is_reviewed_where_nothing_is_uncommitted(fanfold: Fanfold, repo: Any, tmp_path: Path) -> None:
    model = Model()
    repo(model)
    last = commit(tmp_path, "Second")
    done = fanfold(*ONE)
    assert done.err.startswith(f"reviewing 1 file: the last commit, {last[:7]} Second (nothing is uncommitted)\n")
    assert "| Second" in model.audits[0]


def test_base_and_path_say_what_is_reviewed(fanfold: Fanfold, repo: Any, tmp_path: Path) -> None:
    model = Model()
    repo(model)
    write(tmp_path, sub__b_py="x\n", c_py="y\n")
    commit(tmp_path, "Second")
    fanfold(*ONE, "--base", "HEAD~1", "sub")
    assert re.findall("=== (.*)", model.audits[0]) == ["sub/b.py (added)"]


@pytest.mark.parametrize("format", ["markdown", "json"])
def test_formats_on_stdout_and_in_a_file(fanfold: Fanfold, repo: Any, tmp_path: Path, format: str) -> None:
    repo(Model(finding("Leak")))
    suffix = {"markdown": "md", "json": "json"}[format]
    done = fanfold(*ONE, "--format", format, "--output", f"report.{suffix}")
    assert done.code == 0
    assert (tmp_path / f"report.{suffix}").read_text() == done.out
    if format == "json":
        report = json.loads(done.out)
        assert report["confirmed"][0]["title"] == "Leak"
        assert report["files"] == [{"path": "a.py", "status": "modified"}]
        assert report["base"] == git(tmp_path, "rev-parse", "HEAD")
    else:
        assert "## 1. high: Leak\n" in done.out


def test_a_report_that_cannot_be_written_is_shown_all_the_same(fanfold: Fanfold, repo: Any, tmp_path: Path) -> None:
    model = Model(finding("Leak"))

    def answer(asked: Json) -> Say | Http:
        (tmp_path / "reports").rmdir() if (tmp_path / "reports").is_dir() else None
        return model(asked)

    repo(answer)
    (tmp_path / "reports").mkdir()
    done = fanfold(*ONE, "--output", "reports/r.md")
    assert done.code == 1
    assert "Leak" in done.out
    assert "reports/r.md" in done.err


def test_a_quiet_review_says_nothing_but_the_report(fanfold: Fanfold, repo: Any) -> None:
    repo(Model(finding("Leak")))
    done = fanfold(*ONE, "--quiet")
    assert (done.code, done.err) == (0, "")
    assert "Leak" in done.out


def test_what_is_less_severe_is_left_out(fanfold: Fanfold, repo: Any) -> None:
    model = Model(finding("Leak"), finding("Trifle", 50, "low"))
    repo(model)
    done = fanfold(*ONE, "--min-severity", "medium")
    assert model.verified == ["Leak"]
    assert done.err.splitlines()[-2] == "1 confirmed (1 high), 1 less severe"


# ---- exit codes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fail_on", "code"), [("critical", 0), ("high", 1), ("low", 1)])
def test_fail_on_a_severity(fanfold: Fanfold, repo: Any, fail_on: str, code: int) -> None:
    repo(Model(finding("Leak"), finding("Guess", 50, "critical"), wrong=("Guess",)))
    done = fanfold(*ONE, "--fail-on", fail_on)
    assert done.code == code
    assert "Leak" in done.out
    assert (f"confirmed findings that are {fail_on} or worse: 1" in done.err) is bool(code)


def test_without_a_change_there_is_nothing_to_review(fanfold: Fanfold, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    done = fanfold("review")
    assert (done.code, done.out, done.err) == (0, "", "nothing to review: nothing has changed\n")
    (tmp_path / "report.md").write_text("of yesterday")
    done = fanfold("review", "--format", "json", "--output", "report.md")
    assert (done.code, json.loads(done.out)["confirmed"], json.loads(done.out)["run_id"]) == (0, [], None)
    assert (tmp_path / "report.md").read_text() == "# Review of uncommitted changes\n\nNothing has changed.\n"


def test_without_a_repository_it_is_a_wrong_usage(fanfold: Fanfold) -> None:
    done = fanfold("review")
    assert done.code == 2
    assert "Not a git repository" in done.err
    assert "hint: go into one, or name it with -C DIR" in done.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--base", "nowhere"), "is no commit"),
        (("nowhere",), "there is no 'nowhere'"),
        (("--output", "report.txt"), "suffix must be one of .md, .json"),
        (("--output", "no/folder.md"), "cannot be written"),
        (("--model", "nowhere/m1"), "--model"),
        (("--allow", "a b"), "--allow"),
        (("--resume", "wf_review-changes_0000000000000000", "--base", "main"), "leave them out"),
        (("--resume", "nonsense"), "no workflow run"),
        (("--resume", "wf_review-changes_0000000000000000"), "no workflow run"),
        (("--resume", "wf_triage_0000000000000000"), "no workflow run"),
        (("--dimension", "docs", "--dimension", "docs"), "named twice"),
    ],
)
def test_wrong_arguments_ask_nobody(fanfold: Fanfold, repo: Any, arguments: tuple[str, ...], reason: str) -> None:
    model = Model()
    repo(model)
    done = fanfold("review", *arguments)
    assert done.code == (4 if "no workflow run" in reason else 1 if "twice" in reason else 2)
    assert reason in done.err
    assert model.audits == []


def test_agents_that_fail_are_told_and_only_they_run_again(fanfold: Fanfold, repo: Any) -> None:
    model = Model(finding("Leak"))
    broken = True

    def answer(asked: Json) -> Say | Http:
        if broken and "\ndocs: " in prompt_of(asked):
            return Http(status=500)
        return model(asked)

    repo(answer)
    done = fanfold("review", "--dimension", "security", "--dimension", "docs")
    assert done.code == 7
    assert "not audited: docs: a.py" in done.err
    assert "Leak" in done.out
    again = re.search(r"fanfold (review --resume \S+)", done.err)
    assert again is not None
    broken = False
    model.audits.clear()
    model.verified.clear()
    done = fanfold("review", "--resume", again[1].split()[2][-6:], "--format", "json")
    assert done.code == 0
    assert ["\ndocs: " in each for each in model.audits] == [True]
    report = json.loads(done.out)
    assert [each["dimensions"] for each in report["confirmed"]] == [["security", "docs"]]
    assert report["files"] == [{"path": "a.py", "status": "modified"}]


def test_the_command_that_goes_on_asks_the_same_models(fanfold: Fanfold, repo: Any, tmp_path: Path) -> None:
    repo(lambda asked: Http(status=500))
    done = fanfold(*ONE, "--model", "fake/m2", "--allow", "bash(echo:*)", "-C", str(tmp_path))
    assert re.search(
        rf"--resume wf_review-changes_\w+ -C {re.escape(str(tmp_path))} --model fake/m2 --allow 'bash\(echo:\*\)'\n",
        done.err,
    )


def test_what_fails_beside_a_severe_finding_is_told_too(fanfold: Fanfold, repo: Any) -> None:
    model = Model(finding("Leak"))
    repo(lambda asked: Http(status=500) if "\ndocs: " in prompt_of(asked) else model(asked))
    done = fanfold(*ONE, "--dimension", "docs", "--fail-on", "high")
    assert done.code == 1
    assert "hint: some agents failed too; resume with: fanfold review --resume wf_" in done.err


def test_failures_can_be_allowed(fanfold: Fanfold, repo: Any) -> None:
    model = Model(finding("Leak"))
    repo(lambda asked: Http(status=500) if "\ndocs: " in prompt_of(asked) else model(asked))
    assert fanfold(*ONE, "--dimension", "docs", "--allow-failures").code == 0


def test_a_review_all_of_which_failed_has_failed(fanfold: Fanfold, repo: Any) -> None:
    repo(lambda asked: Http(status=500))
    done = fanfold(*ONE)
    assert done.code == 1
    assert "failed: its only agent failed: " in done.err
    assert "resume with: fanfold review --resume wf_review-changes_" in done.err


def test_a_spent_budget_can_be_gone_on_with(fanfold: Fanfold, repo: Any) -> None:
    model = Model(finding("Leak"))
    repo(model)
    done = fanfold(*ONE, "--budget", "1")
    assert done.code == 6
    again = re.search(r"fanfold (review --resume \S+)", done.err)
    assert again is not None
    asked = len(model.audits)
    done = fanfold(*again[1].split(), "--budget", "100k")
    assert done.code == 0
    assert "Leak" in done.out
    assert len(model.audits) == 1 or asked == 0


def test_a_finished_review_is_shown_again_for_nothing(fanfold: Fanfold, repo: Any) -> None:
    model = Model(finding("Leak"))
    server = repo(model)
    first = fanfold(*ONE, "--format", "json")
    run_id = json.loads(first.out)["run_id"]
    asked = len(server.prompts)
    second = fanfold("review", "--resume", run_id, "--format", "json")
    assert second.code == 0
    assert json.loads(second.out)["confirmed"] == json.loads(first.out)["confirmed"]
    assert len(server.prompts) == asked


def test_ctrl_c_keeps_what_is_finished(repo: Any, tmp_path: Path) -> None:
    model = Model(finding("Leak"))
    server = repo(lambda asked: Say("{}", delay_seconds=60) if "<claim>" in prompt_of(asked) else model(asked))
    process = start(*ONE, cwd=tmp_path)
    server.wait_for_requests(2)
    process.send_signal(signal.SIGINT)
    done = ended(process)
    assert done.code == 130
    assert re.search(r"stopped run wf_review-changes_\w+; of its agents 1 done", done.err)
    assert "hint: resume with: fanfold review --resume wf_review-changes_" in done.err


def test_as_many_agents_run_at_once_as_concurrency_says(repo: Any, tmp_path: Path) -> None:
    server = repo(lambda asked: Say("{}", delay_seconds=60))
    named = [word for number in range(12) for word in ("--dimension", f"d{number}")]
    process = start("review", *named, "--concurrency", "12", cwd=tmp_path)
    server.wait_for_requests(12)
    process.kill()
    ended(process)


def test_a_killed_review_is_gone_on_with(fanfold: Fanfold, repo: Any, tmp_path: Path) -> None:
    model = Model(finding("Leak"))
    hangs = True

    def answer(asked: Json) -> Say | Http:
        return Say("{}", delay_seconds=60) if hangs and "<claim>" in prompt_of(asked) else model(asked)

    server = repo(answer)
    process = start(*ONE, cwd=tmp_path)
    server.wait_for_requests(2)
    process.kill()
    run_id = re.search(r"wf_review-changes_\w+", ended(process).err)
    assert run_id is not None
    hangs = False
    model.audits.clear()
    done = fanfold("review", "--resume", run_id[0])
    assert done.code == 0
    assert "Leak" in done.out
    assert (model.audits, model.verified) == ([], ["Leak"])


# ---- what agents may do ---------------------------------------------------------------------------------------------


class Tempted:
    """A reviewer that first calls a tool, whatever the change asks for."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.results: list[str] = []

    def __call__(self, asked: Json) -> Say:
        if asked["messages"][-1]["role"] != "tool":
            return Say(calls=(self.call,))
        self.results.append(asked["messages"][-1]["content"])
        return Say(json.dumps({"findings": []}))


def test_a_reviewer_that_wants_more_than_to_look_goes_on_without_it(
    fanfold: Fanfold, repo: Any, tmp_path: Path
) -> None:
    model = Tempted(Call("bash", json.dumps({"command": "touch made"})))
    repo(model)
    done = fanfold(*ONE)
    assert done.code == 0
    assert "Permission denied" in model.results[0]
    assert not (tmp_path / "made").exists()


def test_allow_lets_reviewers_run_commands(fanfold: Fanfold, repo: Any) -> None:
    model = Tempted(Call("bash", json.dumps({"command": "echo seen"})))
    repo(model)
    assert fanfold(*ONE, "--allow", "bash(echo:*)").code == 0
    assert "seen" in model.results[0]


def test_with_wait_a_reviewer_asks_another_terminal(fanfold: Fanfold, repo: Any, tmp_path: Path) -> None:
    model = Tempted(Call("bash", json.dumps({"command": "echo seen"})))
    repo(model)
    process = start(*ONE, "--wait", cwd=tmp_path)
    while not (waiting := json.loads(fanfold("inbox", "--json").out)["waiting"]):
        pass
    assert waiting[0]["id"].startswith("wf_review-changes_")
    assert fanfold("approve", waiting[0]["id"]).code == 0
    done = ended(process)
    assert done.code == 0
    assert "seen" in model.results[0]


def test_a_reviewer_may_read_what_the_policy_lets_it(fanfold: Fanfold, repo: Any, tmp_path: Path) -> None:
    model = Tempted(Call("read", json.dumps({"file_path": "a.py"})))
    repo(model)
    assert fanfold(*ONE).code == 0
    assert "two" in model.results[0]


@pytest.mark.parametrize("rule", ['deny = ["read(secret*)"]', 'ask = ["read(secret*)"]', 'ask = ["read"]'])
def test_what_read_may_not_have_is_neither_sent_nor_read(
    fanfold: Fanfold, repo: Any, tmp_path: Path, rule: str
) -> None:
    model = Tempted(Call("read", json.dumps({"file_path": "secret.txt"})))
    server = repo(model)
    configure(tmp_path, server, more=f"permissions {{ {rule} }}")
    write(tmp_path, **{"secret.txt": "the key\n"})
    done = fanfold(*ONE)
    assert done.code == 0
    assert not any("the key" in json.dumps(each.json) for each in server.server.requests)
    assert "=== secret.txt (untracked; permissions keep it from being read)" in server.prompts[0]
    assert "Permission denied" in model.results[0]
