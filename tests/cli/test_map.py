"""`fanfold map`: every item once, in order, also when the process was stopped or killed in between."""

import csv
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, Ended, ServerThread, configure, ended, start
from tests.support.chat_server import Call, Http, Json, Say, by_rule

Fanfold = Callable[..., Ended]
Serve = Callable[..., ServerThread]

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["kind", "lines"],
}


def echo(asked: Json) -> Say:
    """Answers with the last message in capitals; as JSON where a schema asks for it."""
    text: str = asked["messages"][-1]["content"]
    if "response_format" in asked:
        return Say(json.dumps({"kind": text.upper(), "lines": len(text)}))
    return Say(text.upper())


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(f"text {name}")
    (tmp_path / "kind.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def rows(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_results_come_in_the_order_of_the_items(fanfold: Fanfold, serve: Serve, workspace: Path) -> None:
    def first_is_slow(asked: Json) -> Say:
        say = echo(asked)
        return Say(say.text, delay_seconds=0.3 if "text a" in asked["messages"][-1]["content"] else 0)

    configure(workspace, serve(first_is_slow))
    done = fanfold("map", "*.txt", "--prompt", "<{content}>", "--format", "jsonl")
    assert done.code == 0
    assert rows(done.out) == [
        {"item": f"{name}.txt", "success": True, "output": f"<TEXT {name.upper()}>", "total_tokens": 20}
        for name in "abc"
    ]
    assert re.search(r"^3 items: 3 run, 60 tokens, \d", done.err.splitlines()[-1])


def test_the_same_command_again_runs_nothing(fanfold: Fanfold, serve: Serve, workspace: Path) -> None:
    server = serve(echo)
    configure(workspace, server)
    command = ("map", "*.txt", "--prompt", "{content}", "--schema", "kind.json", "--out", "out.jsonl")
    first = fanfold(*command)
    written = (workspace / "out.jsonl").read_bytes()
    second = fanfold(*command)
    assert len(server.prompts) == 3
    assert second.err == "3 items: 3 from the journal, 0 run, 0 tokens\n"
    assert second.out == first.out
    assert (workspace / "out.jsonl").read_bytes() == written


@pytest.mark.parametrize(
    "change",
    [
        ("--prompt", "other {content}"),
        ("--prompt", "{content}", "--model", "fake/m2"),
        ("--prompt", "{content}", "--schema", "kind.json"),
        ("--prompt", "{content}", "--then", "and {previous}"),
        ("--prompt", "{content}", "--fresh"),
    ],
)
def test_what_changes_the_question_runs_again(
    fanfold: Fanfold, serve: Serve, workspace: Path, change: tuple[str, ...]
) -> None:
    server = serve(echo)
    configure(workspace, server)
    fanfold("map", "*.txt", "--prompt", "{content}")
    assert " run" in fanfold("map", "*.txt", *change).err
    assert len(server.prompts) >= 6


def test_only_what_changed_and_what_is_new_runs_again(fanfold: Fanfold, serve: Serve, workspace: Path) -> None:
    server = serve(echo)
    configure(workspace, server)
    fanfold("map", "*.txt", "--prompt", "{content}")
    (workspace / "b.txt").write_text("changed")
    (workspace / "aa.txt").write_text("new")
    done = fanfold("map", "*.txt", "--prompt", "{content}")
    assert sorted(server.prompts[3:]) == ["changed", "new"]
    assert "4 items: 2 from the journal, 2 run" in done.err


def test_a_fresh_run_forgets_the_answers_of_this_map_and_of_no_other(
    fanfold: Fanfold, serve: Serve, workspace: Path
) -> None:
    configure(workspace, serve(echo))
    fanfold("map", "*.txt", "--prompt", "other {content}")
    for _ in range(2):
        fanfold("map", "*.txt", "--prompt", "{content}")
    fanfold("map", "a.txt", "--prompt", "{content}", "--fresh")
    found = json.loads(fanfold("checkpoints", "list", "--json").out)["checkpoints"]
    assert sorted((each["succeeded"], each["total_tokens"]) for each in found) == [(1, 20), (3, 60)]


def test_structured_fields_become_columns(fanfold: Fanfold, serve: Serve, workspace: Path) -> None:
    configure(workspace, serve(echo))
    done = fanfold("map", "*.txt", "--prompt", "{content}", "--schema", "kind.json", "--out", "out.csv")
    assert done.out.splitlines()[0].split() == ["item", "kind", "lines"]
    assert done.out.splitlines()[2].split() == ["a.txt", "TEXT", "A", "6"]
    table = list(csv.DictReader((workspace / "out.csv").read_text().splitlines()))
    assert table[0] == {"item": "a.txt", "success": "true", "kind": "TEXT A", "lines": "6", "error": ""}


def test_a_chain_gives_each_step_the_answer_before(fanfold: Fanfold, serve: Serve, workspace: Path) -> None:
    configure(workspace, serve(echo))
    (workspace / "last.json").write_text(json.dumps({"prompt": "({previous}) of {path}", "schema": "kind.json"}))
    done = fanfold("map", "a.txt", "--prompt", "{content}", "--then", "[{previous}]", "--then", "@last.json", "--json")
    document = json.loads(done.out)
    assert document["schema"] == "fanfold/map/v1"
    assert document["items"][0]["structured"]["kind"] == "([TEXT A]) OF A.TXT"
    assert document["items"][0]["total_tokens"] == 60
    assert (document["run"], document["failed"], document["total_tokens"]) == (1, 0, 60)
    assert done.err == ""


def test_lines_and_records_are_items_too(fanfold: Fanfold, serve: Serve, workspace: Path) -> None:
    configure(workspace, serve(echo))
    (workspace / "in.csv").write_text("id,name\nx1,Ann\nx2,Bob\n")
    done = fanfold("map", "-", "in.csv", "--prompt", "{item}", "--format", "jsonl", stdin="one\n\ntwo\n")
    assert [row["item"] for row in rows(done.out)] == ["one", "two", "x1", "x2"]
    done = fanfold("map", "in.csv", "--prompt", "hi {name}", "--format", "jsonl")
    assert [row["output"] for row in rows(done.out)] == ["HI ANN", "HI BOB"]


def test_failed_items_are_listed_and_tried_again(fanfold: Fanfold, serve: Serve, workspace: Path) -> None:
    is_broken = True

    def sometimes(asked: Json) -> Say:
        is_cut = is_broken and "text b" in asked["messages"][-1]["content"]
        return Say("half", stop="content_filter") if is_cut else echo(asked)

    server = serve(sometimes)
    configure(workspace, server)
    (workspace / "z.txt").write_bytes(b"\0")
    command = ("map", "*.txt", "--prompt", "{content}")
    done = fanfold(*command)
    assert done.code == 7
    assert "  b.txt: Task failed: the provider's content filter stopped the answer" in done.err
    assert "  z.txt: is a binary file" in done.err
    assert done.err.endswith("hint: what is done is kept; run the same command to ask only the rest\n")
    assert "b.txt" not in done.out
    assert fanfold(*command, "--allow-failures").code == 0

    is_broken = False
    (workspace / "z.txt").unlink()
    assert "3 items: 2 from the journal, 1 run, 20 tokens" in fanfold(*command).err


def test_a_spent_budget_ends_with_its_own_code_and_keeps_what_is_done(
    fanfold: Fanfold, serve: Serve, workspace: Path
) -> None:
    server = serve(echo)
    configure(workspace, server)
    command = ("map", "*.txt", "--prompt", "{content}", "--concurrency", "1")
    done = fanfold(*command, "--budget", "21")
    assert done.code == 6
    assert "hint: what is done is kept; run the same command, with a larger --budget" in done.err
    assert len(server.prompts) == 2
    assert fanfold(*command).code == 0
    assert len(server.prompts) == 3


def test_a_step_that_needs_approval_is_parked_and_the_option_is_named(
    fanfold: Fanfold, serve: Serve, workspace: Path
) -> None:
    def write_first(asked: Json) -> Say:
        is_first = asked["messages"][-1]["role"] == "user"
        call = Call("write", '{"file_path": "made", "content": "x"}')
        return Say(calls=(call,)) if is_first else Say("done")

    configure(workspace, serve(write_first))
    command = ("map", "a.txt", "--agent", "general", "--prompt", "{content}")
    done = fanfold(*command)
    assert done.code == 5
    assert "allow it with --allow write" in done.err
    assert "see what waits with: fanfold inbox" in done.err
    assert not (workspace / "made").exists()
    assert fanfold(*command, "--allow", "write(made)").code == 0
    assert (workspace / "made").exists()


def test_jsonl_ends_with_the_counts(fanfold: Fanfold, serve: Serve, workspace: Path) -> None:
    configure(workspace, serve(echo))
    done = fanfold("map", "*.txt", "--prompt", "{content}", "--jsonl")
    events = rows(done.out)
    ends = [event["payload"]["item"] for event in events if event["type"] == "item_end"]
    assert sorted(ends) == ["a.txt", "b.txt", "c.txt"]
    assert events[-1]["type"] == "map_end"
    assert events[-1]["payload"]["run"] == 3
    assert done.err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("*.txt",), "either --prompt TEXT or --prompt-file FILE"),
        (("*.txt", "--prompt", "x", "--prompt-file", "a.txt"), "either --prompt TEXT or --prompt-file FILE"),
        (("--prompt", "x"), "there are no items"),
        (("*.nothing", "--prompt", "x"), "'*.nothing' matches no file"),
        (("*.txt", "--prompt", "{contnt}"), "did you mean 'content'?"),
        (("*.txt", "--prompt", "{previous}"), "the prompt names {previous}"),
        (("*.txt", "--prompt", "x", "--agent", "nobody"), "there is no agent 'nobody'"),
        (("*.txt", "--prompt", "x", "--schema", "gone.json"), "cannot read gone.json"),
        (("*.txt", "--prompt", "x", "--schema", "a.txt"), "the schema in a.txt cannot be used: JSON is malformed"),
        (("*.txt", "--prompt", "x", "--schema", "five.json"), "the schema in five.json cannot be used: Expected `bool"),
        (("*.txt", "--prompt", "x", "--schema", "deep.json"), "the schema in deep.json cannot be used: nested too"),
        (("*.txt", "--prompt", "x", "--schema", "wrong.json"), "the schema in wrong.json cannot be used"),
        (("*.txt", "--prompt", "x", "--then", "@gone.json"), "cannot read gone.json"),
        (("*.txt", "--prompt", "x", "--then", "@typo.json"), "typo.json: Object contains unknown field `promt`"),
        (("*.txt", "--prompt", "x", "--then", "@deep-step.json"), "--then deep-step.json: nested too deep"),
        (("*.txt", "--prompt", "x", "--then", "@minus.json"), "--then minus.json: Expected `int` >= 0"),
        (("*.txt", "--prompt", "x", "--then", "@blank.json"), "--then blank.json: the prompt is empty"),
        (("*.txt", "--prompt", " "), "--prompt: the prompt is empty"),
        (("*.txt", "--prompt-file", "blank.txt"), "--prompt-file blank.txt: the prompt is empty"),
        (("*.txt", "--prompt", "{path}", "--then", ""), "--then: the prompt is empty"),
        (("?.txt", "--prompt", "Which language?"), "so all 3 items would get the same answer: put {content} into it"),
        (("a.txt", "--prompt", "{path}", "--then", "y", "--then", "{pth}"), "--then 2, item a.txt: the prompt names"),
        (("two.jsonl", "--prompt", "{n}"), "--prompt, item two.jsonl:2: the prompt names {n}"),
        (("a.txt", "--prompt", "x", "--model", "fke/m"), "--model: unknown provider 'fke'"),
        (("a.txt", "--prompt", "x", "--then", "@model.json"), "--then 1: unknown provider 'nowhere'"),
        (("a.txt", "--prompt", "x", "--out", "loop.csv"), "--out loop.csv: cannot be written there"),
        (("*.txt", "--prompt", "x", "--concurrency", "9" * 20), "--concurrency"),
        (("*.txt", "--prompt", "x", "--budget", "9" * 400), "is no number of tokens"),
        (("*.txt", "--prompt", "x", "--out", "out.xls"), "the suffix must be one of"),
        (("*.txt", "--prompt", "x", "--budget", "lots"), "'lots' is no number of tokens"),
        (("*.txt", "--prompt", "x", "--concurrency", "0"), "--concurrency"),
    ],
)
def test_a_command_that_cannot_work_says_why_before_anything_runs(
    fanfold: Fanfold, serve: Serve, workspace: Path, arguments: tuple[str, ...], message: str
) -> None:
    server = serve(echo)
    configure(workspace, server)
    (workspace / "wrong.json").write_text('{"type": "nonsense"}')
    (workspace / "typo.json").write_text('{"promt": "x"}')
    (workspace / "five.json").write_text("5")
    (workspace / "deep.json").write_text('{"not": ' * 5000)
    (workspace / "deep-step.json").write_text('{"prompt": "x", "schema": ' + '{"not": ' * 5000)
    (workspace / "minus.json").write_text('{"prompt": "x", "max_steps": -1}')
    (workspace / "blank.json").write_text('{"prompt": ""}')
    (workspace / "blank.txt").write_text("\n")
    (workspace / "two.jsonl").write_text('{"n": 1}\n{"m": 1}\n')
    (workspace / "model.json").write_text('{"prompt": "{previous}", "model": "nowhere/m"}')
    (workspace / "loop.csv").symlink_to("loop.csv")
    done = fanfold("map", *arguments)
    assert done.code == 2
    assert message in done.err
    assert server.prompts == []


def test_every_key_of_the_chain_is_there_before_anything_runs(
    fanfold: Fanfold, serve: Serve, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = serve(echo)
    configure(workspace, server)
    (workspace / "last.json").write_text('{"prompt": "{previous}", "model": "openai/m"}')
    assert fanfold("map", "*.txt", "--prompt", "{content}", "--then", "@last.json").code == 3
    assert server.prompts == []


def test_a_prompt_without_a_field_is_fine_for_one_item_and_for_an_agent_with_tools(
    fanfold: Fanfold, serve: Serve, workspace: Path
) -> None:
    configure(workspace, serve(echo))
    assert fanfold("map", "a.txt", "--prompt", "Hello").code == 0
    assert fanfold("map", "?.txt", "--prompt", "Look around", "--agent", "explore").code == 0


def test_an_answer_that_does_not_fit_its_schema_is_reported_with_the_reason_first(
    fanfold: Fanfold, serve: Serve, workspace: Path
) -> None:
    configure(workspace, serve(lambda _asked: Say("so many words " * 200)))
    done = fanfold("map", "a.txt", "--prompt", "{content}", "--schema", "kind.json")
    assert done.code == 7
    progress, _, listed, *_ = done.err.splitlines()
    assert "structured output failed: Structured output parsing failed" in progress
    assert listed.startswith("  a.txt: structured output failed: ")
    assert "it wrote: so many words" in listed
    assert len(listed) < 600


def test_what_the_provider_limits_or_cuts_is_said_after_the_work(
    fanfold: Fanfold, serve: Serve, workspace: Path
) -> None:
    def answer(asked: Json) -> Say | Http:
        if "text a" in asked["messages"][-1]["content"]:
            return Http((b'{"error": {"message": "slow down"}}',), status=429)
        return Say("half", stop="length")

    configure(workspace, serve(answer), max_attempts=1)
    done = fanfold("map", "?.txt", "--prompt", "{content}", "--format", "jsonl")
    assert "try a smaller --concurrency" in done.err
    assert "note: 2 answers were cut at the model's output limit" in done.err
    assert [row.get("stop_reason") for row in rows(done.out)] == [None, "length", "length"]


# ---- stopped and killed ------------------------------------------------------------------------------------


def slow_after(count: int) -> Callable[[Json], Say]:
    """Answers `count` requests at once and lets all further ones wait."""
    seen = 0

    def answer(asked: Json) -> Say:
        nonlocal seen
        seen += 1
        return Say(by_rule(asked).text, delay_seconds=0 if seen <= count else 30)

    return answer


def begin(workspace: Path, server: ServerThread, requests: int) -> "subprocess.Popen[str]":
    process = start("map", "in.jsonl", "--prompt", "{n}", "--concurrency", "2", "--out", "out.jsonl", cwd=workspace)
    server.wait_for_requests(requests)
    return process


def wait_for_records(workspace: Path, count: int) -> None:
    """Return when the journal has that many finished steps."""
    [journal] = (workspace / ".a3s/sessions/workflow").glob("map-*.jsonl")
    while journal.read_text().count('"k":"step"') < count:
        time.sleep(0.005)


@pytest.fixture
def twelve(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"n": "item {n}"}}\n' for n in range(12)))
    return tmp_path


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_map_says_what_is_done_and_goes_on_there(
    serve: Serve, twelve: Path, number: signal.Signals, code: int
) -> None:
    server = serve(slow_after(7))
    configure(twelve, server)
    process = begin(twelve, server, 9)
    process.send_signal(number)
    done = ended(process)
    assert done.code == code
    assert done.out == ""
    assert done.err.splitlines()[-1] == (
        "fanfold: stopped: 7 of 12 items are done and kept; run the same command to continue"
    )
    assert not (twelve / "out.jsonl").exists()
    check_continued(serve, twelve, before=7)


def test_a_killed_map_goes_on_where_it_was(serve: Serve, twelve: Path) -> None:
    server = serve(slow_after(7))
    configure(twelve, server)
    process = begin(twelve, server, 9)
    wait_for_records(twelve, 7)
    process.kill()
    assert ended(process).code == -signal.SIGKILL
    check_continued(serve, twelve, before=7)


def check_continued(serve: Serve, workspace: Path, *, before: int) -> None:
    """The same command runs exactly what is missing, and its file is that of an undisturbed run."""
    server = serve()
    configure(workspace, server)
    done = ended(begin(workspace, server, 12 - before))
    assert done.code == 0
    assert f"12 items: {before} from the journal, {12 - before} run" in done.err
    assert len(server.prompts) == 12 - before
    found = (workspace / "out.jsonl").read_bytes()

    undisturbed = ended(start("map", "in.jsonl", "--prompt", "{n}", "--fresh", "--out", "out.jsonl", cwd=workspace))
    assert undisturbed.code == 0
    assert (workspace / "out.jsonl").read_bytes() == found


def test_two_maps_of_the_same_steps_do_not_share_a_journal(fanfold: Fanfold, serve: Serve, twelve: Path) -> None:
    server = serve(slow_after(0))
    configure(twelve, server)
    process = begin(twelve, server, 2)
    try:
        done = fanfold("map", "in.jsonl", "--prompt", "{n}")
        assert done.code == 8
        message, hint = done.err.splitlines()
        assert re.fullmatch(rf"fanfold: workflow '(map-\w+)' is already active in process {process.pid}", message)
        assert "wait until it has ended" in hint
        assert fanfold("map", "in.jsonl", "--prompt", "{n}", "--fresh").code == 8
        assert fanfold("map", "in.jsonl", "--prompt", "{n}", "--plan").code == 0
    finally:
        process.kill()
        process.communicate()


def test_a_full_disk_is_one_line_and_what_was_kept_stays(serve: Serve, twelve: Path) -> None:
    server = serve(by_rule)
    configure(twelve, server)
    limit = ("-c", 'ulimit -f 1; exec "$@"', "sh")  # a file of 1 KiB, or half of that, is as good as a full disk
    command = (*COMMAND, "map", "in.jsonl", "--prompt", "{n}", "--concurrency", "1")
    process = subprocess.run(["sh", *limit, *command], cwd=twelve, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    message, hint = process.stderr.splitlines()[-2:]
    assert re.match(r"fanfold: cannot write \.a3s/sessions/workflow/map-\w+\.jsonl: ", message)
    assert hint.startswith("hint: make room there")

    kept = process.stderr.count("] ok ")
    assert kept > 0
    done = ended(start("map", "in.jsonl", "--prompt", "{n}", cwd=twelve))
    assert f"12 items: {kept} from the journal, {12 - kept} run" in done.err


def test_a_reader_that_goes_away_stops_the_work(serve: Serve, twelve: Path) -> None:
    server = serve(slow_after(7))
    configure(twelve, server)
    process = start("map", "in.jsonl", "--prompt", "{n}", "--concurrency", "2", "--jsonl", cwd=twelve)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    done = ended(process)
    assert (done.code, done.err) == (1, "")
