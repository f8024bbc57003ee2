"""`fanfold run`: the answer on stdout, everything else on stderr, nothing lost when nobody can be asked."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ended, ServerThread, configure, ended, start
from tests.support.chat_server import Call, Http, Say

Fanfold = Callable[..., Ended]
Serve = Callable[..., ServerThread]

BASH = Call("bash", '{"command": "touch made"}')


def test_stdout_has_the_answer_and_nothing_else(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve([Say("Looking.", calls=(Call("ls", "{}"),)), Say("There are none.")])
    configure(tmp_path, server)
    done = fanfold("run", "Which files are there?")
    assert (done.code, done.out) == (0, "There are none.\n")
    assert "· ls" in done.err
    assert "40 tokens, 1 tool call" in done.err


def test_a_prompt_can_come_from_stdin(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve([Say("yes")])
    configure(tmp_path, server)
    assert fanfold("run", "-", stdin="Is it so?\n").out == "yes\n"
    assert server.prompts == ["Is it so?\n"]


def test_json_is_one_document(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Say("yes")]))
    done = fanfold("run", "Is it so?", "--session", "s1", "--json")
    document = json.loads(done.out)
    assert (document["schema"], document["session_id"], document["text"]) == ("fanfold/run/v1", "s1", "yes")
    assert done.err == ""


def test_jsonl_is_the_events_and_the_last_is_terminal(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Say("yes, it is")]))
    events = [json.loads(line) for line in fanfold("run", "Is it so?", "--jsonl").out.splitlines()]
    assert events[0]["type"] == "agent_start"
    assert events[-1]["type"] == "agent_end"
    text = "".join(event["payload"]["text"] for event in events if event["type"] == "text_delta")
    assert text == "yes, it is"


def test_a_session_goes_on_where_it_was(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve([Say("Ann."), Say("Ann, you said.")])
    configure(tmp_path, server)
    fanfold("run", "My name is Ann.", "--session", "s1")
    assert fanfold("run", "What is my name?", "--session", "s1").out == "Ann, you said.\n"
    roles = [message["role"] for message in server.server.requests[-1].json["messages"]]
    assert roles == ["system", "user", "assistant", "user"]


def test_a_call_that_needs_approval_parks_and_can_be_approved_later(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    server = serve([Say(calls=(Call("write", '{"file_path": "made", "content": "x"}', "call_7"),)), Say("Made it.")])
    configure(tmp_path, server)
    parked = fanfold("run", "Make it.", "--session", "s1")
    assert (parked.code, parked.out) == (5, "")
    assert "call_7" in parked.err
    assert "--allow write" in parked.err
    assert "fanfold run --session s1 --approve" in parked.err
    assert not (tmp_path / "made").exists()
    assert "waits for an approval" in fanfold("sessions", "list").out

    done = fanfold("run", "--session", "s1", "--approve")
    assert (done.code, done.out) == (0, "Made it.\n")
    assert (tmp_path / "made").read_text() == "x"
    assert len(server.server.requests) == 2


def test_a_parked_call_shows_what_it_would_do_and_cannot_steer_the_terminal(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    args = json.dumps({"command": "rm -rf ~ \x1b[2J\u202e" + "x" * 900})
    configure(tmp_path, serve([Say(calls=(Call("bash", args),))]))
    parked = fanfold("run", "Tidy up.", "--session", "my session")
    hint = parked.err.splitlines()[1:]
    assert hint[0].startswith('hint: it would do: bash {"command":"rm -rf ~ \\u001b[2J\\u202exxx')
    assert len(hint[0]) < 450
    assert "fanfold run --session 'my session' --approve" in hint[1]


def test_a_denied_call_does_not_run(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Say(calls=(Call("write", '{"file_path": "made", "content": "x"}'),)), Say("Well.")]))
    fanfold("run", "Make it.", "--session", "s1")
    assert fanfold("run", "--session", "s1", "--deny").code == 1
    assert not (tmp_path / "made").exists()


def test_an_allowed_call_runs_unasked(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(
        tmp_path,
        serve([Say(calls=(Call("write", '{"file_path": "made", "content": "x"}'),)), Say("Made it.")]),
    )
    assert fanfold("run", "Make it.", "--allow", "write(made)").code == 0
    assert (tmp_path / "made").exists()


def test_a_call_that_fails_is_told_with_its_reason_though_it_was_never_begun(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    calls = (Call("write", '{"file": "made"}', "call_1"), Call("read", '{"file_path": "gone\u202e"}', "call_2"))
    configure(tmp_path, serve([Say(calls=calls), Say("It could not.")]))
    done = fanfold("run", "Make it.")
    assert (done.code, done.out) == (0, "It could not.\n")
    assert "\u202e" not in done.err
    told = done.err.splitlines()
    assert any(line.startswith("· write failed: The arguments of 'write' do not fit its schema") for line in told)
    assert any(line.startswith("· read failed: ") for line in told)
    assert "failed" not in fanfold("run", "Make it.", "--quiet").err


def test_a_childs_call_that_nobody_can_be_asked_about_is_told(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    task = Call("task", '{"agent": "general", "description": "d", "prompt": "child"}', "call_1")
    write = Call("write", '{"file_path": "made", "content": "x"}', "call_2")
    script = [Say(calls=(task,)), Say(calls=(write,)), Say("It could not.")] * 2
    configure(tmp_path, serve(script))
    done = fanfold("run", "Have it made.", "--allow", "task")
    assert (done.code, done.out) == (0, "It could not.\n")
    assert "hint: a child wanted to use write, and nobody can be asked here; allow it with\n" in done.err
    assert "--allow write, or answer from another terminal, with --wait" in done.err
    assert json.loads(fanfold("run", "Have it made.", "--allow", "task", "--json").out)["unanswered"] == ["write"]
    assert not (tmp_path / "made").exists()


def test_a_question_parks_and_can_be_answered_later(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve([Say(calls=(Call("ask_user", '{"question": "Which one?"}'),)), Say("The red one, then.")])
    configure(tmp_path, server)
    parked = fanfold("run", "Choose.", "--session", "s1")
    assert parked.code == 5
    assert "Which one?" in parked.err
    assert "--answer" in parked.err
    assert fanfold("run", "--session", "s1", "--answer", "red").out == "The red one, then.\n"
    assert "red" in json.dumps(server.server.requests[-1].json["messages"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "x", "--resume", "--session", "s"),
        ("run", "--resume"),
        ("run", "--approve", "--deny", "--session", "s"),
        ("run", "  "),
        ("run", "x", "--allow", "bash(oops"),
        ("run", "x", "--json", "--jsonl"),
        ("run", "x", "--model", "fke/m1"),
        ("run", "x", "--model", ""),
        ("run", "x", "--session", ""),
        ("run", "bad \udcff argument"),
    ],
)
def test_a_command_line_that_contradicts_itself_runs_nothing(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    server = serve()
    configure(tmp_path, server)
    assert fanfold(*arguments).code == 2
    assert server.server.requests == []


def test_resuming_what_is_not_there_is_not_found(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve())
    assert fanfold("run", "--resume", "--session", "nobody").code == 4
    fanfold("run", "Hello", "--session", "s1")
    assert fanfold("run", "--approve", "--session", "s1").code == 4


def test_an_answer_that_broke_off_is_no_success(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Say("Half an ans", stop="content_filter")]))
    done = fanfold("run", "Hello")
    assert (done.code, done.out) == (1, "Half an ans\n")
    assert "content filter" in done.err


@pytest.mark.parametrize("stop", ["stop", "length"])
def test_a_run_without_an_answer_is_no_success(fanfold: Fanfold, serve: Serve, tmp_path: Path, stop: str) -> None:
    configure(tmp_path, serve(lambda _asked: Say(" ", stop=stop)), max_attempts=1)
    done = fanfold("run", "Hello", "--session", "s1")
    assert (done.code, done.out.strip()) == (1, "")
    assert "fanfold run --session s1 " in done.err


def test_a_spent_tool_budget_is_no_success_and_the_session_goes_on(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve())
    done = fanfold("run", "[[tool=ls*30 {}]]", "--session", "s1")
    assert (done.code, done.out) == (1, "")
    assert "the tool budget of this turn was spent before an answer" in done.err
    assert "fanfold run --session s1 PROMPT" in done.err
    assert fanfold("run", "Go on.", "--session", "s1").code == 0


def test_a_step_limit_says_how_to_go_on(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(lambda _asked: Say(calls=(Call("no_such_tool"),))))
    done = fanfold("run", "Hello", "--session", "s1")
    assert done.code == 1
    assert "StepLimit" in done.err
    assert "hint: go on with a further prompt: fanfold run --session s1 PROMPT" in done.err


def test_a_failure_that_may_pass_says_how_to_go_on(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Http((b"{}",), status=429), Say("Here.")]), max_attempts=1)
    done = fanfold("run", "Hello", "--session", "s1")
    assert done.code == 1
    assert "\nthe session is kept; later go on with: fanfold run --session s1 --resume\n" in done.err
    assert fanfold("run", "--session", "s1", "--resume").out == "Here.\n"


@pytest.mark.parametrize("more", [(), ("--json",), ("--jsonl",)])
def test_an_error_of_a_server_cannot_steer_the_terminal(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, more: tuple[str, ...]
) -> None:
    body = json.dumps({"error": {"message": "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202eevil\u2066"}}).encode()
    configure(tmp_path, serve([Http((body,), status=400)]))
    done = fanfold("run", "Hello", *more)
    assert "pwned" in done.err
    assert {"\x1b", "\x07", "\x9b", "\u202e", "\u2066"}.isdisjoint(done.out + done.err)


def test_an_unreachable_server_is_one_line_and_the_session_is_kept(fanfold: Fanfold, tmp_path: Path) -> None:
    (tmp_path / "agent.acl").write_text(
        'default_model = "fake/m"\nproviders "fake" {\n base_url = "http://127.0.0.1:1/v1"\n max_attempts = 1\n}\n'
    )
    done = fanfold("run", "Hello", "--session", "s1")
    assert done.code == 1
    assert "127.0.0.1:1" in done.err
    assert len(done.err.splitlines()) <= 2
    assert "Hello" in fanfold("sessions", "show", "s1").out


def test_a_refused_key_is_one_line(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Http((b'{"error": {"message": "bad key"}}',), status=401)]))
    done = fanfold("run", "Hello")
    assert done.code == 1
    assert "bad key" in done.err
    assert "Traceback" not in done.err


def test_ctrl_c_keeps_the_session_and_says_how_to_go_on(serve: Serve, tmp_path: Path) -> None:
    server = serve([Say("too late", delay_seconds=30)])
    configure(tmp_path, server)
    process = start("run", "Hello", "--session", "s1", cwd=tmp_path)
    server.wait_for_requests(1)
    process.send_signal(2)
    done = ended(process)
    assert done.code == 130
    assert done.err == "fanfold: stopped; the session is kept: fanfold run --session s1 --resume\n"

    again = ended(start("run", "--session", "s1", "--resume", cwd=tmp_path))
    assert again.code == 0
    assert server.prompts == ["Hello", "Hello"]


def test_sigterm_ends_like_ctrl_c_but_with_its_own_code(serve: Serve, tmp_path: Path) -> None:
    server = serve([Say("too late", delay_seconds=30)])
    configure(tmp_path, server)
    process = start("run", "Hello", cwd=tmp_path)
    server.wait_for_requests(1)
    process.terminate()
    assert ended(process).code == 143
