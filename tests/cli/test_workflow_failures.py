"""What a user reads of a run that has failed: why, once, and a next step that works."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ended, ServerThread, configure
from tests.cli.workflow_project import Fanfold, only_run, ready_script, write_script
from tests.support.chat_server import Answer, Http, Json, Say

Serve = Callable[..., ServerThread]
HEAD = 'META = {"name": "team", "description": "d"}\nasync def main(ctx, args):\n    '
ONE = 'return await ctx.agent("ask", label="one", agent_type="answer"'
TWO = 'return await ctx.parallel([lambda e=e: ctx.agent(e, label=e, agent_type="answer") for e in ("a", "b")])'
FIVE = 'return [await ctx.agent(f"ask {n}", agent_type="answer") for n in range(5)]'
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def refusing(status: int, message: str, **headers: str) -> Http:
    body = json.dumps({"error": {"message": message}}).encode()
    return Http((body,), status=status, headers={"Content-Type": "application/json", **headers})


class Model:
    """Gives one answer to everybody until it is `well`."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.is_well = False

    def __call__(self, asked: Json) -> Answer:
        return Say('{"n": 5}') if self.is_well else self.answer


BROKEN, FORBIDDEN = refusing(500, "in trouble"), refusing(401, "no such key")
SPENT = refusing(429, "quota is spent", **{"Retry-After": "3600"})
SILENT, FILTERED, WORDS = Http(then="hang"), Say("half", stop="content_filter"), Say("no json")

FAILURES = [
    (f"{ONE})", BROKEN, (), 1, "answered 500: in trouble (gave up after 2 attempts)", "resume with: "),
    (TWO, BROKEN, (), 1, "answered 500: in trouble (gave up after 2 attempts)", "resume with: "),
    (f"{ONE})", FORBIDDEN, (), 1, "answered 401: no such key", "once the provider takes the key, resume with: "),
    (f"{ONE}, timeout_ms=200)", SILENT, (), 1, "it did not end within 200 ms", "resume with: "),
    (f"{ONE})", FILTERED, (), 1, "the provider's content filter stopped the answer; it said: half", "resume with: "),
    (f"{ONE}, schema={SCHEMA})", WORDS, (), 1, "it said: no json", "resume with: "),
    (FIVE, WORDS, ("--max-agents", "1"), 1, "this run has launched 1 agent, which is its limit", "resume with: "),
]


@pytest.mark.parametrize(("body", "answer", "options", "code", "reason", "hint"), FAILURES)
def test_why_it_failed_is_said_once_at_its_end_and_the_command_of_the_hint_goes_on(
    body: str,
    answer: Answer,
    options: tuple[str, ...],
    code: int,
    reason: str,
    hint: str,
    fanfold: Fanfold,
    serve: Serve,
    tmp_path: Path,
) -> None:
    model = Model(answer)
    configure(tmp_path, serve(model), max_attempts=2)
    ready_script(tmp_path, HEAD + body)
    done = fanfold("workflow", "run", "team", *options)
    run = only_run(fanfold)
    assert done.code == code
    told = _behind_the_summary(done)
    assert told.count(reason) == 1
    assert len(told.splitlines()) == 2
    assert told.startswith(f"fanfold: run {run} ")
    assert f"\nhint: {hint}fanfold workflow resume {run}" in told
    shown = fanfold("runs", "show", run)
    assert (shown.out + shown.err).count(reason) == 1
    assert f"{hint}fanfold workflow resume {run}" in shown.err
    model.is_well = True
    assert fanfold(*_command(told)).code == 0


def test_a_spent_quota_says_until_when(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model(SPENT)), max_attempts=1)
    ready_script(tmp_path, f"{HEAD}{ONE})")
    told = _behind_the_summary(fanfold("workflow", "run", "team"))
    assert "is paused, the provider's limit is reached until 20" in told
    assert told.count("quota is spent") == 1
    assert "\nhint: once the provider's limit allows it, resume with: fanfold workflow resume" in told


@pytest.mark.parametrize(
    ("body", "reason", "mended"),
    [
        ('raise ValueError("no good")', "ValueError: no good (line 3 of its script)", "return 5"),
        ("return object()", "what the script returned is not JSON", "return 5"),
        ('return await ctx.agent("ask", lable="x")', "there is no option 'lable'; did you mean 'label'?", f"{ONE})"),
        ('return await ctx.agent("ask", agent_type="nobody")', "Unknown agent type: 'nobody'", f"{ONE})"),
    ],
)
def test_a_script_that_is_at_fault_is_to_be_mended_first(
    body: str, reason: str, mended: str, fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve(Model(Say("fine"))))
    ready_script(tmp_path, HEAD + body)
    told = _behind_the_summary(fanfold("workflow", "run", "team"))
    run = only_run(fanfold)
    assert told.count(reason) == 1
    assert f"\nhint: mend the script, then resume with: fanfold workflow resume {run}" in told
    shown = fanfold("runs", "show", run)
    assert (shown.out + shown.err).count(reason.removesuffix(" of its script)")) == 1
    assert f"mend the script, then resume with: fanfold workflow resume {run}" in shown.err
    write_script(tmp_path, HEAD + mended)
    assert fanfold(*_command(told), "--yes").code == 0


def test_an_inline_script_is_mended_in_a_file(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model(Say("fine"))))
    (tmp_path / "s.py").write_text(f'{HEAD}raise ValueError("no good")')
    told = _behind_the_summary(fanfold("workflow", "run", "--inline", "s.py"))
    run = only_run(fanfold)
    assert told.count("ValueError: no good (line 3 of its script)") == 1
    shown = fanfold("runs", "show", run)
    assert (shown.out + shown.err).count("no good") == 1
    assert "Traceback" not in shown.out  # there is no frame but of fanfold
    again = f"fanfold workflow resume {run} --file PATH.py"
    assert f"mend the script, then resume with: {again}" in told
    assert json.loads(fanfold("runs", "show", run, "--json").out)["next_command"] == again
    (tmp_path / "s.py").write_text(f"{HEAD}return 5")
    assert fanfold("workflow", "resume", run, "--file", "s.py").out == "5\n"


def test_agents_that_say_the_same_are_listed_in_one_line(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    def answer(asked: Json) -> Answer:
        return Say("fine") if "g" in str(asked["messages"][-1]["content"]) else BROKEN

    configure(tmp_path, serve(answer), max_attempts=1)
    ready_script(tmp_path, HEAD + TWO.replace('("a", "b")', '"abcdefg"'))
    done = fanfold("workflow", "run", "team")
    assert done.code == 7
    listed, said, hint = _behind_the_summary(done).splitlines()
    assert listed.count(" (/0.") == 5
    assert " and 1 more: LLM error: fake (127.0.0.1:" in listed
    assert said.endswith(": 6 of 7 agents failed, 6 results are None")
    assert hint.startswith("hint: resume with: ")


def test_a_budget_that_is_spent_is_no_fault_of_the_script(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model(Say("fine"))))
    ready_script(tmp_path, HEAD + FIVE)
    done = fanfold("workflow", "run", "team", "--budget", "10")
    assert done.code == 6
    assert _behind_the_summary(done).count("20 of 10 tokens are spent") == 1
    shown = fanfold("runs", "show", only_run(fanfold))
    assert "mend" not in shown.err
    assert "--budget TOKENS" in shown.err


def _behind_the_summary(done: Ended) -> str:
    """What stderr has behind the line that sums the run up."""
    lines = done.err.splitlines()
    [at] = [number for number, line in enumerate(lines) if line.endswith(".output.json")]
    return "\n".join(lines[at + 1 :])


def _command(told: str) -> list[str]:
    """The words behind `fanfold` of the command that the hint ends with."""
    return shlex.split(told.rpartition("resume with: fanfold ")[2])
