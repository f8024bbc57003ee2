"""`fanfold parallel`: the steps of a file, their outcomes in order."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended, ServerThread, configure, ended, start
from tests.support.chat_server import Json, Say

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


def test_ctrl_c_says_that_nothing_is_kept(serve: Serve, tmp_path: Path) -> None:
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
    assert "stopped: 1 of 2 steps had ended; parallel keeps no results" in done.err
