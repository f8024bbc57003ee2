"""init, models, doctor, sessions and log: what they say is true, and keys stay secret."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.cli.checks import shown_url
from tests.cli.conftest import Ended, ServerThread, configure
from tests.support.chat_server import Say

Fanfold = Callable[..., Ended]
Serve = Callable[..., ServerThread]

KEY = "sk-test-0123456789abcdef"


def test_init_writes_a_configuration_that_is_valid_and_changes_nothing_the_second_time(
    fanfold: Fanfold, tmp_path: Path
) -> None:
    (tmp_path / ".gitignore").write_text("*.log")
    assert fanfold("init").code == 0
    first = (tmp_path / "agent.acl").read_text(), (tmp_path / ".gitignore").read_text()
    assert first[1] == "*.log\n.a3s/artifacts/\n.a3s/effect-log/\n.a3s/sessions/\n.a3s/workflow-runs/\n"
    assert fanfold("models", "list").code == 0

    assert "is there already" in fanfold("init").out
    assert ((tmp_path / "agent.acl").read_text(), (tmp_path / ".gitignore").read_text()) == first


def test_init_leaves_a_gitignore_alone_that_has_it_all(fanfold: Fanfold, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text(".a3s/\n")
    fanfold("init")
    assert (tmp_path / ".gitignore").read_text() == ".a3s/\n"


def test_models_name_what_can_be_asked_for_and_never_show_a_key(
    fanfold: Fanfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    (tmp_path / "agent.acl").write_text(
        """
        default_model = "mine/m1"
        providers "mine" {
          api_key  = env("MY_KEY")
          base_url = "https://user:secret@example.org/v1"
          models "m1" { limit = { context = 32000 } }
        }
        """
    )
    done = fanfold("models", "list", "--json")
    models = {model["model"]: model for model in json.loads(done.out)["models"]}
    assert models["mine/m1"]["context"] == 32000
    assert models["mine/m1"]["is_default"] is True
    assert models["mine/m1"]["place"] == "https://example.org/v1"
    assert "local/default" in models
    assert "openai/<any id>" in models
    shown = done.out + fanfold("models", "list").out + fanfold("doctor").out
    assert KEY not in shown
    assert "secret" not in shown
    assert "***cdef (env MY_KEY" in shown


def test_doctor_names_what_it_found(fanfold: Fanfold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    done = fanfold("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.out)["checks"]}
    assert done.code == 0
    assert checks["config"]["detail"] == "built-in defaults"
    assert checks["default model"]["detail"] == "local/default"
    assert checks["provider anthropic"]["status"] == "missing"
    assert "env ANTHROPIC_API_KEY" in checks["provider anthropic"]["detail"]
    assert {"fanfold", "sandbox", "rg", "rich", "pydantic_monty", "local runtime", "local model"} <= set(checks)


def test_doctor_exits_with_3_on_a_configuration_that_cannot_be_used(
    fanfold: Fanfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.acl").write_text("nonsense = 1\nmore_nonsense = 2\n")
    done = fanfold("doctor")
    assert done.code == 3
    assert done.out.count("BAD") == 2
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "agent.acl").write_text('default_model = "openai/x"\n')
    done = fanfold("doctor")
    assert done.code == 3
    assert "OPENAI_API_KEY is not set" in done.out


@pytest.mark.parametrize(
    ("url", "shown"),
    [(None, ""), ("http://u:p@host:1/v1", "http://host:1/v1"), ("http://host/v1", "http://host/v1")],
)
def test_urls_are_shown_without_their_password(url: str | None, shown: str) -> None:
    assert shown_url(url) == shown


def test_sessions_show_what_the_logs_hold(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Say("Four.")]))
    fanfold("run", "Two and two?", "--session", "sums")
    [listed] = json.loads(fanfold("sessions", "list", "--json").out)["sessions"]
    assert (listed["session_id"], listed["status"], listed["facts"]) == ("sums", "done", 2)
    assert listed["first_prompt"] == "Two and two?"
    assert fanfold("sessions", "show", "sums").out == "> Two and two?\nFour.\n"
    shown = json.loads(fanfold("sessions", "show", "sums", "--json").out)
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]


def test_a_workspace_without_sessions_is_no_error(fanfold: Fanfold) -> None:
    done = fanfold("sessions", "list")
    assert (done.code, done.out) == (0, "")


def test_a_damaged_log_is_reported_listed_and_repaired_without_losing_a_byte(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve())
    for prompt in ("one", "two"):
        fanfold("run", prompt, "--session", "s1")
    path = tmp_path / ".a3s/effect-log/s1.jsonl"
    assert fanfold("log", "check", "s1").code == 0
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + b"garbage\n" + lines[3])

    done = fanfold("log", "check", "s1")
    assert done.code == 1
    assert "s1.jsonl:3: " in done.out
    assert "fanfold log repair s1" in done.err
    assert "damaged" in fanfold("sessions", "list").out
    run = fanfold("run", "three", "--session", "s1")
    assert run.code == 1
    assert "corrupt at line 3" in run.err
    assert "fanfold log repair s1" in run.err

    repaired = json.loads(fanfold("log", "repair", "s1", "--json").out)
    assert repaired["kept_facts"] == 2
    assert Path(repaired["moved_to"]).read_bytes() == b"garbage\n" + lines[3]
    assert path.read_bytes() == lines[0] + lines[1]
    assert "nothing to repair" in fanfold("log", "repair", "s1").out
    assert fanfold("run", "three", "--session", "s1").code == 0


def test_one_log_that_makes_no_sense_does_not_hide_the_others(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve())
    fanfold("run", "one", "--session", "good")
    logs = tmp_path / ".a3s/effect-log"
    _, answer = (logs / "good.jsonl").read_text().splitlines()
    (logs / "bad.jsonl").write_text(answer.replace('"seq":2', '"seq":1') + "\n")  # an answer to nothing
    listed = json.loads(fanfold("sessions", "list", "--json").out)["sessions"]
    assert {each["session_id"]: each["status"] for each in listed} == {"good": "done", "bad": "damaged"}


@pytest.mark.parametrize("arguments", [("log", "check"), ("sessions", "show"), ("run", "more", "--session")])
def test_a_log_that_is_nested_too_deeply_is_damaged_like_any_other(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    configure(tmp_path, serve())
    fanfold("run", "one", "--session", "s1")
    path = tmp_path / ".a3s/effect-log/s1.jsonl"
    line = '{"seq":1,"type":"note.x","key":"k","cause":null,"payload":{"a":' + "[" * 5000 + "]" * 5000 + "}}\n"
    path.write_text(line + path.read_text())
    done = fanfold(*arguments, "s1")
    assert "nested too deeply" in done.out + done.err or "damaged" in done.err
    assert "damaged" in fanfold("sessions", "list").out


def test_init_takes_a_gitignore_as_it_is_and_no_pipe(fanfold: Fanfold, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(b"\xff")
    assert fanfold("init").code == 0
    assert (tmp_path / ".gitignore").read_bytes().startswith(b"\xff\n.a3s/artifacts/\n")
    (tmp_path / ".gitignore").unlink()
    os.mkfifo(tmp_path / ".gitignore")
    assert ".gitignore: it is not a regular file" in fanfold("init").err


@pytest.mark.parametrize("arguments", [("sessions", "show"), ("log", "check"), ("log", "repair")])
def test_what_is_not_there_is_not_found(fanfold: Fanfold, arguments: tuple[str, ...]) -> None:
    done = fanfold(*arguments, "nobody")
    assert done.code == 4
    assert "fanfold sessions list" in done.err


def test_workspace_means_as_if_started_there(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    configure(tmp_path / "inner", serve([Say("hi")]))
    assert fanfold("run", "x", "--session", "s1", "-C", "inner").out == "hi\n"
    assert (tmp_path / "inner/.a3s/effect-log/s1.jsonl").exists()
