"""`fanfold parallel`: the steps of a file, their outcomes in order; with --workflow none of them is paid for twice."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, Ended, ServerThread, configure, ended, start
from tests.support.chat_server import Call, Json, Say

Fanfold = Callable[..., Ended]
Serve = Callable[..., ServerThread]


def echo(asked: Json) -> Say:
    return Say(asked["messages"][-1]["content"].upper())


def write(workspace: Path, *specs: dict[str, Any]) -> None:
    (workspace / "specs.json").write_text(json.dumps(specs))


def test_outcomes_come_in_the_order_of_the_file(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(echo))
    write(tmp_path, *({"task_id": f"t{n}", "agent": "answer", "prompt": f"p{n}"} for n in range(5)))
    done = fanfold("parallel", "specs.json", "--json", "--budget", "50k")
    document = json.loads(done.out)
    assert [(each["task_id"], each["output"]) for each in document["outcomes"]] == [
        (f"t{n}", f"P{n}") for n in range(5)
    ]
    assert document["budget"] == {"consumed_tokens": 100, "limit_tokens": 50_000}
    assert (done.code, done.err) == (0, "")


def test_a_failed_step_is_listed_and_its_siblings_are_there(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    def sometimes(asked: Json) -> Say:
        is_cut = asked["messages"][-1]["content"] == "break off"
        return Say("half", stop="content_filter") if is_cut else echo(asked)

    configure(tmp_path, serve(sometimes))
    write(
        tmp_path,
        {"task_id": "good", "agent": "answer", "prompt": "p"},
        {"task_id": "lost", "agent": "answer", "prompt": "break off"},
    )
    done = fanfold("parallel", "specs.json")
    assert done.code == 7
    assert "good" in done.out
    assert "  lost: Task failed: the provider's content filter stopped the answer" in done.err
    assert "2 steps: 2 run, 1 failed, 40 tokens" in done.err
    assert fanfold("parallel", "specs.json", "--allow-failures").code == 0


def test_specs_can_come_from_stdin_and_events_end_with_the_outcomes(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve(echo))
    specs = json.dumps([{"task_id": "a", "agent": "answer", "prompt": "p"}])
    events = [json.loads(line) for line in fanfold("parallel", "-", "--jsonl", stdin=specs).out.splitlines()]
    assert events[0]["type"] == "subagent_start"
    assert events[-1]["type"] == "parallel_end"
    assert events[-1]["payload"]["outcomes"][0]["output"] == "P"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{", "specs.json is no JSON list of steps like"),
        ('{"task_id": "a"}', "Expected `array`, got `object`"),
        ("5", "Expected `array`, got `int`"),
        ("null", "Expected `array`, got `null`"),
        ("[]", "specs.json has no steps"),
        ("[" * 5000, "nested too deeply"),
        ("[5]", "specs[0]: expected a mapping, got int"),
        ('[{"task_id": "a", "agent": "answer", "promt": "p"}]', "did you mean 'prompt'?"),
        ('[{"task_id": "a", "agent": "answer"}]', "specs[0].prompt: is required"),
        ('[{"task_id": "a", "agent": "answer", "prompt": " "}]', "specs[0].prompt: the prompt is empty"),
        (
            '[{"task_id": "a", "agent": "explorer", "prompt": "p"}]',
            "specs[0].agent: there is no agent 'explorer'; did you mean 'explore'?",
        ),
        (
            '[{"task_id": "a", "agent": "answer", "prompt": "p"}, '
            '{"task_id": "b", "agent": "answer", "prompt": "p", "model": "fke/m1"}]',
            "specs[1].model: unknown provider 'fke' in model 'fke/m1'; did you mean 'fake'?",
        ),
        ('[{"task_id": "a", "agent": "answer", "prompt": "p", "model": ""}]', "specs[0].model: model ''"),
    ],
)
def test_a_file_with_a_fault_runs_nothing(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, text: str, message: str
) -> None:
    server = serve(echo)
    configure(tmp_path, server)
    (tmp_path / "specs.json").write_text(text)
    done = fanfold("parallel", "specs.json")
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1
    assert server.prompts == []


def test_a_byte_order_mark_is_no_part_of_the_file(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(echo))
    specs = '\ufeff[{"task_id": "a", "agent": "answer", "prompt": "p"}]'
    (tmp_path / "specs.json").write_text(specs, encoding="utf-8")
    assert fanfold("parallel", "specs.json").code == 0
    assert fanfold("parallel", "-", stdin=specs).code == 0


def test_a_missing_file_is_a_usage_error(fanfold: Fanfold) -> None:
    done = fanfold("parallel", "gone.json")
    assert done.code == 2
    assert "cannot read gone.json: No such file" in done.err


def test_ctrl_c_says_that_nothing_is_kept_without_a_workflow(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda asked: Say("late", delay_seconds=30 if asked["messages"][-1]["content"] == "slow" else 0))
    configure(tmp_path, server)
    write(
        tmp_path,
        {"task_id": "a", "agent": "answer", "prompt": "quick"},
        {"task_id": "b", "agent": "answer", "prompt": "slow"},
    )
    process = start("parallel", "specs.json", cwd=tmp_path)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("[1/2] ok    a")
    server.wait_for_requests(2)
    process.send_signal(2)
    done = ended(process)
    assert done.code == 130
    message, hint = done.err.splitlines()[-2:]
    assert message == "fanfold: stopped: 1 of 2 steps had ended"
    assert hint.startswith("hint: nothing is kept without --workflow ID")
    assert not (tmp_path / ".a3s/sessions").exists()


def test_a_step_that_is_tried_again_counts_once(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve([Say("half", stop="content_filter"), Say("whole")])
    configure(tmp_path, server)
    write(tmp_path, {"task_id": "a", "agent": "answer", "prompt": "p", "retries": 2})
    done = fanfold("parallel", "specs.json")
    assert (done.code, len(server.prompts)) == (0, 2)
    assert "[1/1] ok    a" in done.err
    assert "1 steps: 1 run, 40 tokens" in done.err


def test_a_step_that_ran_out_of_time_did_run(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(lambda _asked: Say("late", delay_seconds=20)))
    write(tmp_path, {"task_id": "a", "agent": "answer", "prompt": "p", "timeout_ms": 50})
    done = fanfold("parallel", "specs.json")
    assert done.code == 7
    assert "[1/1] FAIL  a" in done.err
    assert "1 steps: 1 run, 1 failed" in done.err


# ---- with --workflow ---------------------------------------------------------------------------------------

RESUMABLE = ("parallel", "specs.json", "--workflow", "nightly")
STEPS = (
    {"task_id": "a", "agent": "answer", "prompt": "first"},
    {"task_id": "b", "agent": "answer", "prompt": "second"},
    {"task_id": "slow", "agent": "explore", "prompt": "third"},
)


def look_then_wait(asked: Json) -> Say:
    """Answers at once, but for the third step, which first uses a tool and then waits."""
    last = asked["messages"][-1]
    if last["role"] == "tool":
        return Say("third", delay_seconds=30)
    return Say(calls=(Call("ls"),)) if last["content"] == "third" else echo(asked)


def begin(workspace: Path, serve: Serve) -> "subprocess.Popen[str]":
    """The three steps, two of them finished and recorded, the third one waiting for its second turn."""
    server = serve(look_then_wait)
    configure(workspace, server)
    write(workspace, *STEPS)
    process = start(*RESUMABLE, cwd=workspace)
    server.wait_for_requests(4)
    journal = workspace / ".a3s/sessions/workflow/nightly.jsonl"
    while journal.read_text().count('"k":"step"') < 2:
        time.sleep(0.005)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_workflow_says_what_is_kept_and_how_to_go_on(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = begin(tmp_path, serve)
    process.send_signal(number)
    done = ended(process)
    assert done.code == code
    assert done.err.splitlines()[-2:] == [
        "fanfold: stopped: 2 of 3 steps are done and kept",
        "hint: go on with: fanfold parallel specs.json --workflow nightly",
    ]
    check_continued(fanfold, serve, tmp_path)


def test_a_killed_workflow_goes_on_where_it_was(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    process = begin(tmp_path, serve)
    process.kill()
    assert ended(process).code == -signal.SIGKILL
    check_continued(fanfold, serve, tmp_path)


def check_continued(fanfold: Fanfold, serve: Serve, workspace: Path) -> None:
    """Only the third step runs, from its second turn on; then there is no checkpoint any more."""
    server = serve(echo)
    configure(workspace, server)
    done = fanfold(*RESUMABLE, "--json")
    assert done.code == 0
    assert [each["output"] for each in json.loads(done.out)["outcomes"][:2]] == ["FIRST", "SECOND"]
    [asked] = server.server.requests
    assert [message["role"] for message in asked.json["messages"]][-3:] == ["user", "assistant", "tool"]
    assert json.loads(fanfold("checkpoints", "list", "--json").out)["checkpoints"] == []


def test_a_workflow_runs_in_one_process_at_a_time(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    process = begin(tmp_path, serve)
    try:
        done = fanfold(*RESUMABLE)
        assert done.code == 8
        assert f"fanfold: workflow 'nightly' is already active in process {process.pid}\n" in done.err
        assert "hint: wait until it has ended, or stop it" in done.err
    finally:
        process.kill()
        process.communicate()


def test_after_failures_the_same_command_runs_only_the_rest(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    is_broken = True

    def sometimes(asked: Json) -> Say:
        is_cut = is_broken and asked["messages"][-1]["content"] == "second"
        return Say("half", stop="content_filter") if is_cut else echo(asked)

    server = serve(sometimes)
    configure(tmp_path, server)
    write(tmp_path, *STEPS)
    done = fanfold(*RESUMABLE)
    assert done.code == 7
    assert done.err.splitlines()[-2:] == [
        "fanfold: 1 of 3 steps failed",
        "hint: the finished steps are kept; only the rest runs with: fanfold parallel specs.json --workflow nightly",
    ]
    is_broken = False
    again = fanfold(*RESUMABLE)
    assert again.code == 0
    assert server.prompts[3:] == ["second"]
    assert again.err.splitlines()[0].startswith("[3/3] ok    b")
    assert "3 steps: 2 from the journal, 1 run, 20 tokens" in again.err
    assert [line.split()[1] for line in again.out.splitlines()[2:]] == ["FIRST", "SECOND", "THIRD"]


def test_events_tell_cached_steps_with_their_answers(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Say("one"), Say("half", stop="content_filter"), Say("two")]))
    write(tmp_path, *STEPS[:2])
    fanfold(*RESUMABLE, "--concurrency", "1")
    events = [json.loads(line) for line in fanfold(*RESUMABLE, "--jsonl").out.splitlines()]
    assert [each["type"] for each in events if each["type"] == "step_cached"] == ["step_cached"]
    ends = [each["payload"] for each in events if each["type"] == "item_end"]
    assert sorted((end["item"], end["output"], end["is_cached"]) for end in ends) == [
        ("a", "one", True),
        ("b", "two", False),
    ]


def test_the_budget_of_a_workflow_covers_earlier_runs(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve(echo)
    configure(tmp_path, server)
    write(tmp_path, *STEPS)
    assert fanfold(*RESUMABLE, "--budget", "21", "--concurrency", "1").code == 6
    done = fanfold(*RESUMABLE, "--budget", "40", "--concurrency", "1")
    assert done.code == 6
    assert len(server.prompts) == 2
    assert "(40 / 40 tokens)" in done.err
    assert "hint: the budget covers the earlier runs of workflow 'nightly' too; the finished steps are kept" in done.err
    assert fanfold(*RESUMABLE, "--budget", "60").code == 0
    assert len(server.prompts) == 3


def test_a_changed_step_runs_again_and_is_named_or_is_refused(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve([Say("one"), Say("half", stop="content_filter"), Say("two"), Say("three")])
    configure(tmp_path, server)
    write(tmp_path, *STEPS[:2])
    fanfold(*RESUMABLE, "--concurrency", "1")
    write(tmp_path, {**STEPS[0], "prompt": "another"}, STEPS[1])
    refused = fanfold(*RESUMABLE, "--strict")
    assert refused.code == 2
    assert "workflow 'nightly' recorded other steps than these: 'a' changed since" in refused.err
    assert "hint: see what changed with --plan" in refused.err
    assert len(server.prompts) == 2
    done = fanfold(*RESUMABLE)
    assert done.code == 0
    assert "note: changed since it was recorded, so run again: a\n" in done.err


def test_another_model_on_the_command_line_is_another_question(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve([Say("one"), Say("half", stop="content_filter"), Say("two"), Say("three")])
    configure(tmp_path, server)
    write(tmp_path, *STEPS[:2])
    fanfold(*RESUMABLE, "--concurrency", "1")
    assert fanfold(*RESUMABLE, "--model", "fake/m2", "--concurrency", "1").code == 0
    assert [request.json["model"] for request in server.server.requests] == ["m1", "m1", "m2", "m2"]


def test_steps_from_stdin_have_to_be_given_again(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Say("half", stop="content_filter")]))
    done = fanfold("parallel", "-", "--workflow", "w 1", stdin=json.dumps(STEPS[:1]))
    assert "runs with: give the same steps to: fanfold parallel - --workflow 'w 1'\n" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--strict",), "--strict needs --workflow ID"),
        (("--plan",), "--plan needs --workflow ID"),
        (("--workflow", " "), "a workflow id must be text that is not blank"),
    ],
)
def test_a_workflow_that_cannot_be_runs_nothing(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    server = serve(echo)
    configure(tmp_path, server)
    write(tmp_path, *STEPS)
    done = fanfold("parallel", "specs.json", *options)
    assert done.code == 2
    assert message in done.err
    assert server.prompts == []


def test_a_full_disk_keeps_what_was_recorded(serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(echo))
    write(tmp_path, *({"task_id": f"t{n}", "agent": "answer", "prompt": f"p{n}"} for n in range(24)))
    limit = ("-c", 'ulimit -f 4; exec "$@"', "sh")  # a file of 4 KiB, or half of that, is as good as a full disk
    command = (*COMMAND, *RESUMABLE, "--concurrency", "1")
    process = subprocess.run(["sh", *limit, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    message, hint = process.stderr.splitlines()[-2:]
    assert message.startswith("fanfold: cannot write .a3s/sessions/workflow/nightly.jsonl: ")
    assert hint.startswith("hint: make room there")
    done = ended(start(*RESUMABLE, cwd=tmp_path))
    assert done.code == 0
    assert " from the journal" in done.err
