"""`fanfold inbox`, `approve`, `deny`, `answer`, `steer`, `cancel` where nothing runs: what is parked, exit codes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended, ServerThread, configure
from tests.support.chat_server import Call, Json, Say

Fanfold = Callable[..., Ended]
Serve = Callable[..., ServerThread]


def write(name: str, id: str = "call_7") -> Say:
    return Say(calls=(Call("write", json.dumps({"file_path": name, "content": "x"}), id),))


def ask(**args: Any) -> Say:
    return Say(calls=(Call("ask_user", json.dumps({"question": "Which one?", **args}), "call_9"),))


def inbox(fanfold: Fanfold) -> list[Json]:
    done = fanfold("inbox", "--json")
    document = json.loads(done.out)
    assert (done.code, done.err, document["schema"], document["notes"]) == (0, "", "fanfold/inbox/v1", [])
    found: list[Json] = document["waiting"]
    return found


# ---- the inbox -------------------------------------------------------------------------------------------------------


def test_an_empty_inbox_says_so_and_makes_nothing(fanfold: Fanfold, tmp_path: Path) -> None:
    assert fanfold("inbox") == Ended(0, "", "nothing waits here\n")
    assert inbox(fanfold) == []
    assert not (tmp_path / ".a3s").exists()


def test_the_inbox_lists_sessions_and_workflows_oldest_first(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([write("one"), ask(options=["red", "blue"]), write("three")]))
    (tmp_path / "specs.json").write_text(
        '[{"task_id": "docs", "agent": "general", "prompt": "p", "description": "tidy the docs"}]'
    )
    fanfold("run", "Make it.", "--session", "s1")
    fanfold("run", "Choose.", "--session", "my session")
    fanfold("parallel", "specs.json", "--workflow", "nightly")
    first, second, third = inbox(fanfold)
    assert (first["id"], first["tool"], first["args"]) == ("s1/call_7", "write", {"file_path": "one", "content": "x"})
    assert (second["id"], second["question"], second["options"]) == ("my session/call_9", "Which one?", ["red", "blue"])
    assert (third["id"], third["step"], third["about"]) == ("nightly/docs/call_7", "docs", "tidy the docs")
    assert second["commands"] == ["fanfold answer 'my session/call_9' TEXT"]
    assert third["commands"] == ["fanfold approve nightly/docs/call_7", "fanfold deny nightly/docs/call_7"]
    assert first["since"].startswith("20")
    text = fanfold("inbox").out
    assert 'write {"file_path":"one","content":"x"}\n  fanfold approve s1/call_7\n' in text
    assert "Which one?\n  1. red\n  2. blue\n" in text
    assert "workflow nightly · step docs (tidy the docs) · parked · since" in text


def test_what_a_model_writes_cannot_steer_the_terminal(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([ask(question="\x1b[2J\u202eWhich?"), write("\x1b]0;x\x07\u202e")]))
    fanfold("run", "Choose.", "--session", "s1")
    fanfold("run", "Make it.", "--session", "s2")
    text = fanfold("inbox", "--json").out + fanfold("approve", "s1/call_9").err + fanfold("deny", "nothing\x1b[2J").err
    assert {"\x1b", "\x07", "\u202e"}.isdisjoint(text)
    assert "\\u001b]0;x" in fanfold("inbox").out


def test_an_option_is_one_line_and_cannot_pass_for_another_thing_that_waits(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve([ask(options=["yes\n\nsession s2 · parked\n  fanfold approve s2/call_1", "no"])]))
    fanfold("run", "Choose.", "--session", "s1")
    assert "  1. yes session s2 · parked fanfold approve s2/call_1\n  2. no\n" in fanfold("inbox").out
    assert "\n  1. yes session s2 " in fanfold("answer", "s1/call_9", "neither").err


def test_a_printed_command_works_though_its_id_looks_like_an_option(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve([write("made")]))
    fanfold("run", "Make it.", "--session=--json")
    [waiting] = inbox(fanfold)
    assert waiting["commands"][0] == "fanfold approve -- --json/call_7"
    assert fanfold(*waiting["commands"][0].split()[1:]).code == 0


def test_a_log_that_cannot_be_read_is_a_note_and_the_rest_is_listed(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve([write("one")]))
    fanfold("run", "Make it.", "--session", "s1")
    (tmp_path / ".a3s/effect-log/bad.jsonl").write_text('{"seq":1}\n{"seq":2}\n')
    done = fanfold("inbox")
    assert "fanfold approve s1/call_7" in done.out
    assert done.err.startswith("note: bad cannot be read: fact log 'bad' is corrupt at line 1")
    document = json.loads(fanfold("inbox", "--json").out)
    assert (len(document["waiting"]), len(document["notes"])) == (1, 1)


# ---- parked sessions -------------------------------------------------------------------------------------------------


def test_a_parked_run_prints_the_id_and_the_commands(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([write("made")]))
    parked = fanfold("run", "Make it.", "--session", "my session", "--json")
    error = json.loads(parked.err)
    assert (parked.code, parked.out, error["code"]) == (5, "", "PARKED")
    [waiting] = error["waiting"]
    assert (waiting["id"], waiting["args"]) == ("my session/call_7", {"file_path": "made", "content": "x"})
    assert waiting["commands"] == ["fanfold approve 'my session/call_7'", "fanfold deny 'my session/call_7'"]
    assert error["next_command"] == "fanfold run --session 'my session' --resume"
    assert "or: fanfold approve 'my session/call_7' or fanfold deny 'my session/call_7'" in error["hint"]


def test_an_approval_is_recorded_without_any_configuration_and_resume_goes_on(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve([write("made"), Say("Made it.")]))
    fanfold("run", "Make it.", "--session", "s1")
    (tmp_path / "agent.acl").rename(tmp_path / "elsewhere.acl")
    approved = fanfold("approve", "s1/call_7")
    assert approved == Ended(0, "", "approved s1/call_7; go on with: fanfold run --session s1 --resume\n")
    assert not (tmp_path / "made").exists()
    assert inbox(fanfold) == []
    again = fanfold("approve", "call_7")
    assert (again.code, again.err) == (4, "fanfold: 's1/call_7' does not wait any more: it was approved\n")
    done = fanfold("run", "--session", "s1", "--resume", "--config", "elsewhere.acl")
    assert (done.code, done.out) == (0, "Made it.\n")
    assert (tmp_path / "made").read_text() == "x"


def test_a_denial_is_recorded_with_its_reason_and_the_tool_never_runs(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    server = serve([write("made"), Say("Something else, then.")])
    configure(tmp_path, server)
    fanfold("run", "Make it.", "--session", "s1")
    denied = json.loads(fanfold("deny", "call_7", "--reason", "not today", "--json").out)
    assert denied == {
        "schema": "fanfold/answer/v1",
        "id": "s1/call_7",
        "answer": "denied",
        "goes_on": False,
        "next_command": "fanfold run --session s1 PROMPT",
    }
    assert fanfold("run", "--session", "s1", "--resume").code == 1
    assert fanfold("run", "And now?", "--session", "s1").out == "Something else, then.\n"
    assert "denied by the user: not today" in json.dumps(server.server.requests[-1].json["messages"])
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("given", "stdin", "answer"),
    [("blue", "", "blue"), ("1", "", "red"), ("-", "blue\n", "blue"), ("7", "", None), ("green", "", None)],
)
def test_a_question_with_options_takes_one_of_them_or_its_number(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, given: str, stdin: str, answer: str | None
) -> None:
    server = serve([ask(options=["red", "blue"]), Say("Fine.")])
    configure(tmp_path, server)
    fanfold("run", "Choose.", "--session", "s1")
    done = fanfold("answer", "call_9", given, stdin=stdin)
    if answer is None:
        assert done.code == 2
        assert "has to be answered with one of its options, or its number:\n  1. red\n  2. blue\n" in done.err
        assert len(inbox(fanfold)) == 1
        return
    assert (done.code, done.err) == (0, "answered s1/call_9; go on with: fanfold run --session s1 --resume\n")
    assert fanfold("run", "--session", "s1", "--resume").out == "Fine.\n"
    assert server.server.requests[-1].json["messages"][-1]["content"] == answer


def test_an_open_question_takes_any_text_that_is_not_blank(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve([ask(), Say("Fine.")])
    configure(tmp_path, server)
    fanfold("run", "Choose.", "--session", "s1")
    assert fanfold("answer", "call_9", "  ").code == 2
    assert fanfold("answer", "call_9", "the second\none").code == 0
    fanfold("run", "--session", "s1", "--resume")
    assert server.server.requests[-1].json["messages"][-1]["content"] == "the second\none"


# ---- ids -------------------------------------------------------------------------------------------------------------


def test_an_ambiguous_id_is_refused_with_the_candidates(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([write("one"), write("two")]))
    for session in ("s1", "s2"):
        fanfold("run", "Make it.", "--session", session)
    done = fanfold("approve", "call_7")
    assert done.code == 2
    assert "'call_7' may mean 2 things that wait; give more of the id:\n  s1/call_7\n  s2/call_7\n" in done.err
    assert len(inbox(fanfold)) == 2
    assert fanfold("approve", "s2/call_7").code == 0
    assert fanfold("approve", "call_7").code == 0


@pytest.mark.parametrize("command", [("approve", "x"), ("deny", "x"), ("answer", "x", "y")])
def test_what_does_not_wait_is_not_found(fanfold: Fanfold, command: tuple[str, ...]) -> None:
    done = fanfold(*command)
    assert (done.code, done.err.splitlines()) == (
        4,
        ["fanfold: nothing waits here as 'x'", "hint: see what waits with: fanfold inbox"],
    )
    assert json.loads(fanfold(*command, "--json").err)["code"] == "NOT_FOUND"


def test_a_question_cannot_be_approved_and_a_call_not_answered(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([ask(), write("one")]))
    fanfold("run", "Choose.", "--session", "s1")
    fanfold("run", "Make it.", "--session", "s2")
    for command, hint in (
        (("approve", "call_9"), "fanfold answer s1/call_9 TEXT"),
        (("deny", "call_9"), "fanfold answer s1/call_9 TEXT"),
        (("answer", "call_7", "yes"), "fanfold approve s2/call_7 or fanfold deny s2/call_7"),
    ):
        done = fanfold(*command)
        assert done.code == 2
        assert hint in done.err
    assert len(inbox(fanfold)) == 2


# ---- fan-outs --------------------------------------------------------------------------------------------------------


def write_first(asked: Json) -> Say:
    newest = asked["messages"][-1]
    return write(newest["content"], "call_1") if newest["role"] == "user" else Say("done")


def specs(workspace: Path, *names: str) -> None:
    steps = [{"task_id": each, "agent": "general", "prompt": f"made-{each}"} for each in names]
    (workspace / "specs.json").write_text(json.dumps(steps))


def test_a_workflow_parks_its_steps_and_goes_on_from_the_answers(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    server = serve(write_first)
    configure(tmp_path, server)
    specs(tmp_path, "a", "b", "c")
    command = ("parallel", "specs.json", "--workflow", "nightly")
    parked = fanfold(*command)
    assert parked.code == 5
    assert "3 of 3 steps wait for an approval or an answer" in parked.err
    assert "hint: see what waits with: fanfold inbox\n" in parked.err
    assert "fanfold approve nightly/a/call_1 or fanfold deny nightly/a/call_1\n" in parked.err
    assert parked.err.endswith("then go on with: fanfold parallel specs.json --workflow nightly\n")

    approved = fanfold("approve", "a/call_1")
    assert approved.err == (
        "approved nightly/a/call_1; recorded: "
        "run the same `fanfold parallel ... --workflow nightly` again, and it goes on\n"
    )
    assert fanfold("deny", "b/call_1").err.endswith("and it goes on (the step ends as denied)\n")
    again = fanfold("approve", "a/call_1")
    assert (again.code, "was approved" in again.err) == (4, True)

    assert [each["id"] for each in inbox(fanfold)] == ["nightly/c/call_1"]
    asked = len(server.prompts)
    done = fanfold(*command, "--json")
    assert done.code == 5
    assert [each["id"] for each in json.loads(done.err)["waiting"]] == ["nightly/c/call_1"]
    outcomes = json.loads(done.out)["outcomes"]
    assert [each["success"] for each in outcomes] == [True, False, False]
    assert len(server.prompts) == asked + 1
    assert sorted(path.name for path in tmp_path.glob("made-*")) == ["made-a"]

    fanfold("approve", "nightly/c/call_1")
    assert fanfold(*command, "--allow", "write").code == 0
    assert sorted(path.name for path in tmp_path.glob("made-*")) == ["made-a", "made-b", "made-c"]
    assert inbox(fanfold) == []


def test_failures_may_be_allowed_while_something_waits(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(write_first))
    specs(tmp_path, "a")
    assert fanfold("parallel", "specs.json", "--workflow", "n", "--allow-failures").code == 0
    assert [each["id"] for each in inbox(fanfold)] == ["n/a/call_1"]


def test_without_a_workflow_nothing_is_parked_and_the_error_says_what_would_keep_it(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve(write_first))
    specs(tmp_path, "a")
    done = fanfold("parallel", "specs.json")
    assert done.code == 7
    assert "with --workflow ID it would wait for fanfold approve" in done.err
    assert inbox(fanfold) == []


def test_a_map_parks_its_items_and_goes_on_from_the_answers(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(write_first))
    command = ("map", "-", "--agent", "general", "--prompt", "made-{item}", "--json")
    parked = fanfold(*command, stdin="a\nb\n")
    error = json.loads(parked.err)
    assert (parked.code, error["message"]) == (5, "2 of 2 items wait for an approval or an answer")
    assert [(each["about"], each["args"]["file_path"]) for each in error["waiting"]] == [
        ("made-a", "made-a"),
        ("made-b", "made-b"),
    ]
    for each in error["waiting"]:
        assert fanfold("approve", each["id"]).err.endswith(
            "recorded: run the same `fanfold map` again, and it goes on\n"
        )
    assert fanfold(*command, stdin="a\nb\n").code == 0
    assert sorted(path.name for path in tmp_path.glob("made-*")) == ["made-a", "made-b"]


# ---- what does not run -----------------------------------------------------------------------------------------------


def test_only_what_runs_can_be_steered_or_cancelled(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([write("one")]))
    fanfold("run", "Make it.", "--session", "s1")
    steered = fanfold("steer", "s1", "faster")
    assert steered.code == 4
    assert "session 's1' does not run just now" in steered.err
    assert "hint: give it a prompt: fanfold run --session s1 PROMPT" in steered.err
    assert fanfold("cancel", "s1").code == 4
    assert fanfold("steer", "nobody", "faster").err == "fanfold: no session or workflow 'nobody' runs here\n"
    assert json.loads(fanfold("cancel", "nobody/step", "--json").err)["code"] == "NOT_FOUND"


def test_waiting_and_nothing_to_do_leave_no_socket(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Say("yes"), Say("yes")]))
    specs(tmp_path, "a")
    assert fanfold("run", "Is it so?", "--wait").code == 0
    assert fanfold("parallel", "specs.json", "--wait").code == 0
    assert fanfold("cancel", "nobody").err == "fanfold: no session or workflow 'nobody' runs here\n"
