"""The tree of a workflow run as it is seen: frames at two widths, the live view, plain lines."""

import asyncio
import io
import json

import pytest
from rich.console import Console as RichConsole

from fanfold.cli.console import Console, open_console
from fanfold.cli.progress import JsonLines, Silent
from fanfold.cli.run_tree import PlainRun, notice_text, run_view_for
from fanfold.cli.run_tree_live import LiveRun
from fanfold.cli.run_tree_rows import frame
from fanfold.cli.run_tree_state import RunTree
from fanfold.contracts.events import AgentEvent
from tests.cli.test_run_tree_state import NOW, Run

NAMES = ("correctness of the parser and its errors", "security", "日本語のラベル", "tests", "docs")
LATE = NOW + 150_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Recorded(Run):
    """A run whose events can be told to a view."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = _Hearing()

    @property
    def events(self) -> list[AgentEvent]:
        assert isinstance(self.tree, _Hearing)
        return self.tree.heard


class _Hearing(RunTree):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[AgentEvent] = []

    def observe(self, item: AgentEvent, now_ms: int) -> None:
        self.heard.append(item)
        super().observe(item, now_ms)


def audit(run: Run) -> None:
    """Two phases in the middle of a resumed run; `tests` is silent."""
    run.start(
        workflow="review-changes",
        phases=["Collect", "Audit", "Verify"],
        attempt=2,
        is_resume=True,
        budget={"spent_tokens": 2_000, "limit_tokens": 50_000},
    )
    run.progress("workflow_phase", title="Collect")
    run.agent("#0", "cached", 10, phase="Collect", label="list the files", model="acme/small-1")
    run.ran(
        "#1",
        at=20,
        phase="Collect",
        label="read the diff",
        tokens=1_200,
        cost_usd=0.0031,
        tools=4,
        model="acme/small-1",
    )
    run.progress("workflow_phase", 3_000, title="Audit")
    for index, name in enumerate(NAMES):
        run.agent(f"/0.{index}#0", "queued", 3_000, phase="Audit", label=name, model="acme/small-1")
    for index in range(4):
        run.agent(f"/0.{index}#0", "started", 3_100, phase="Audit")
    run.progress("workflow_log", 3_200, message="five\ndimensions")
    run.agent("/0.1#0", "failed", 9_100, phase="Audit", tokens=800, error="the answer broke off", tools=1)
    run.progress(
        "workflow_failure", 9_100, where="/0.1", index=1, label="security", code="NO_ANSWER", message="x", line=7
    )
    run.agent("/0.2#0", "done", 30_000, phase="Audit", tokens=15_800, cost_usd=1.25, tools=1)
    run.progress("workflow_activity", 100_000, where="/0.0#0", tool="read_file")


def finish(run: Run) -> None:
    run.tell(
        "task_notification",
        200_000,
        workflow="review-changes",
        status="completed_with_failures",
        counts={"launched": 6, "done": 4, "cached": 1, "failed": 1, "null_results": 1},
        total_tokens=34_100,
        usage={"total_tokens": 34_100},
        cost_usd=1.5,
        duration_ms=197_000,
        output_file="/runs/wf_a_1.output.json",
    )


def shown(tree: RunTree, width: int, height: int = 24, now_ms: int = LATE) -> list[str]:
    """What a terminal of that size shows, as rich writes it."""
    out = io.StringIO()
    view = LiveRun(console(Terminal()), tree, lambda: now_ms)
    RichConsole(file=out, width=width, height=height, no_color=True).print(view, end="")
    return [line.rstrip() for line in out.getvalue().splitlines()]


def console(err: io.StringIO, environ: dict[str, str] | None = None, **flags: bool) -> Console:
    environ = {"TERM": "xterm"} if environ is None else environ
    return open_console(environ=environ, streams=(Terminal(), io.StringIO(), err), **flags)


def test_a_run_at_80_columns() -> None:
    run = Run()
    audit(run)
    assert shown(run.tree, 80) == [
        "review-changes · attempt 2 · running · 2:30",
        "2 done · 1 cached · 2 running · 1 queued · 1 failed · 1 silent",
        "budget ███████░░░░░░░░░░░░ 19.8k / 50.0k · $1.25",
        "✓ Collect  2/2                                           1200  $0.0031    1.0s",
        "▸ Audit  2/5 · 2 running · 1 failed                     16.6k    $1.25    2:27",
        "  ▸ correctness of the pa…  small-1       read_file                       2:26",
        "  ✗ security: the answer broke off                        800             6.0s",
        "  ✓ 日本語のラベル          small-1       1 tool        15.8k    $1.25   26.9s",
        "  ! tests                   small-1       silent 2:26                     2:26",
        "  · docs                    small-1",
        "· Verify",
    ]


def test_a_run_at_40_columns() -> None:
    run = Run()
    audit(run)
    assert shown(run.tree, 40) == [
        "review-changes · attempt 2 · running",
        "2:30",
        "2 done · 1 cached · 2 running",
        "1 queued · 1 failed · 1 silent",
        "budget ███░░░░░░ 19.8k / 50.0k · $1.25",
        "✓ Collect  2/2            1200    1.0s",
        "▸ Audit  2/5 · 2 runni…  16.6k    2:27",
        "  ▸ correctness of the…           2:26",
        "  ✗ security: the answ…    800    6.0s",
        "  ✓ 日本語のラベル       15.8k   26.9s",
        "  ! silent 2:26: tests            2:26",
        "  · docs",
        "· Verify",
    ]


def test_a_label_has_the_room_of_models_and_prices_that_nobody_has_told_of() -> None:
    run = Run()
    run.start()
    label = "Is the name of this function unclear?"
    run.agent("#0", "started", label=label)
    assert label in shown(run.tree, 80)[-1]
    run.agent("#1", "started", label="other", model="acme/small-1")
    assert label not in shown(run.tree, 80)[-2]
    assert shown(run.tree, 80)[-1].split()[2] == "small-1"


def test_a_frame_leaves_two_columns_to_the_control_c_that_a_terminal_writes_behind_it() -> None:
    run = Run()
    run.start()
    run.agent("#0", "started", label="x" * 300)
    for width in (40, 80, 120):
        assert max(map(len, shown(run.tree, width))) == width - 2


def test_a_run_that_is_over_is_folded_to_its_phases() -> None:
    run = Run()
    audit(run)
    for index in (0, 3, 4):
        run.agent(f"/0.{index}#0", "done", 150_000, phase="Audit")
    finish(run)
    assert shown(run.tree, 80) == [
        "review-changes · attempt 2 · completed with failures · 3:17",
        "5 done · 1 cached · 0 running · 0 queued · 1 failed",
        "budget ███████░░░░░░░░░░░░ 19.8k / 50.0k · $1.50",
        "✓ Collect  2/2                                           1200  $0.0031    1.0s",
        "✗ Audit  5/5 · 1 failed                                 16.6k    $1.25    2:27",
        "· Verify",
    ]


def test_a_run_that_was_stopped_shows_where() -> None:
    run = Run()
    run.start(phases=["A", "B"])
    run.ran("#0", phase="A")
    run.agent("#1", "started", 1_000, phase="B")
    run.tell("task_notification", 2_000, workflow="audit", status="stopped", duration_ms=2_000)
    assert shown(run.tree, 80)[:2] == ["audit · stopped · 2.0s", "1 done · 0 running · 0 queued · 1 cancelled"]
    assert [line.split()[0] for line in shown(run.tree, 80)[-2:]] == ["✓", "■"]


def test_without_a_budget_the_header_tells_tokens_and_money() -> None:
    run = Run()
    run.start()
    run.ran("#0", tokens=12_400, cost_usd=0.0423)
    assert shown(run.tree, 80)[2] == "12.4k tok · $0.0423"


def bodies(run: Run, height: int, width: int = 80) -> list[str]:
    return shown(run.tree, width, height + 1 + 3, NOW + 2_000)[3:]


def test_those_that_run_have_rows_before_those_that_failed_wait_or_have_ended() -> None:
    run = Run()
    run.start()
    for number in range(3):
        run.ran(f"ended{number}", "done")
        run.ran(f"failed{number}", "failed")
    for number in range(3):
        run.agent(f"waits{number}", "queued")
        run.agent(f"runs{number}", "queued")
        run.agent(f"runs{number}", "started")

    def names(rows: int) -> list[str]:
        return [line.split()[1] for line in bodies(run, 1 + rows)[1:]]

    assert names(2) == ["runs0", "runs1"]
    assert names(5) == ["failed1", "failed2", "runs0", "runs1", "runs2"]
    assert names(8) == ["failed0", "failed1", "failed2", "waits0", "runs0", "waits1", "runs1", "runs2"]
    assert [name for name in names(10) if "ended" in name] == ["ended2"]  # the newest


def test_phases_at_once_share_the_room_evenly() -> None:
    run = Run()
    run.start()
    for phase, count in (("A", 1), ("B", 50), ("C", 50)):
        for number in range(count):
            run.agent(f"{phase}{number}", "started", phase=phase)
    lines = bodies(run, 14)
    assert len(lines) == 14
    assert [sum(line.startswith(f"  ▸ {phase}") for line in lines) for phase in "ABC"] == [1, 5, 5]


def test_many_finished_phases_take_little_room() -> None:
    run = Run()
    run.start()
    for number in range(1_000):
        run.progress("workflow_phase", title=f"P{number}")
        run.ran(f"{number}", "failed" if number == 5 else "done", phase=f"P{number}", tokens=10, cost_usd=0.001)
    run.agent("busy", "started", phase="P999")
    lines = bodies(run, 12)
    assert lines[0].startswith("✓ 996 phases  996 agents · 1 failed")
    assert lines[0].split()[-2:] == ["9960", "$0.9960"]
    assert [line.split()[1] for line in lines[1:]] == ["P996", "P997", "P998", "P999", "999", "busy"]


def test_many_phases_at_once_are_cut_and_those_with_agents_stay() -> None:
    run = Run()
    run.start(phases=[f"P{number}" for number in range(100)])
    for number in range(20):
        run.agent(f"#{number}", "started", phase="P77")
    lines = bodies(run, 10)
    assert len(lines) == 10
    assert lines[0].startswith("▸ P77")
    assert [line.split()[1] for line in lines[1:5]] == ["#0", "#1", "#2", "#3"]
    assert lines[-1] == "  … and 95 more phases"


def test_rows_that_are_not_shown_are_not_laid_out() -> None:
    run = Run()
    run.start()
    for number in range(1_000):
        run.agent(f"#{number}", "queued")
    for row in list(run.tree.queued.values())[50:]:
        row.label = None  # type: ignore[assignment] # laying it out would raise
    assert len(frame(run.tree, 80, 50, NOW)) == 50


# ---- the live view ----


def test_the_last_frame_the_logs_and_the_failures_stay_on_the_terminal() -> None:
    run, err = Recorded(), Terminal()
    audit(run)
    finish(run)

    async def work() -> None:
        async with LiveRun(console(err, no_color=True), RunTree(), lambda: LATE) as view:
            for item in run.events:
                view.event(item)

    asyncio.run(work())
    text = err.getvalue()
    assert "review-changes: resumed, attempt 2 as wf_a_1" in text  # by which others stop it, and this one after a crash
    assert "log: five dimensions" in text
    assert "FAIL  security  800 tok  6.0s  the answer broke off" in text
    assert "None  /0.1 (index 1, line 7): agent 'security' failed" in text
    assert "read the diff" not in text  # an agent that did its work leaves a number
    last = text.splitlines()[-1].removeprefix("\x1b[?25h")  # the cursor is shown again
    assert last.startswith("review-changes: completed with failures · 4 done · 1 cached · 1 failed")
    assert "✗ Audit" in text.splitlines()[-3]


def test_events_draw_nothing_and_a_tick_draws_only_what_is_new() -> None:
    run, err, now = Recorded(), Terminal(), [NOW]
    audit(run)

    async def work() -> None:
        view = LiveRun(console(err), RunTree(), lambda: now[0])
        async with view:
            sizes = [len(err.getvalue())]
            for item in run.events:
                view.event(item)
            sizes.append(len(err.getvalue()))
            for moment in (NOW, NOW + 1, NOW + 1_000):
                now[0] = moment
                view.tick()
                sizes.append(len(err.getvalue()))
        before, fed, drawn, same, second_later = sizes
        assert before == fed < drawn == same < second_later

    asyncio.run(work())


def test_a_script_that_logs_too_fast_is_cut_and_says_so() -> None:
    run, err = Recorded(), Terminal()
    for number in range(5_000):
        run.progress("workflow_log", message=f"line-{number}.")

    async def work() -> None:
        async with LiveRun(console(err), RunTree(), lambda: NOW) as view:
            for item in run.events:
                view.event(item)

    asyncio.run(work())
    text = err.getvalue()
    assert "… 4800 lines are not shown" in text
    assert "line-4799." not in text
    assert "line-4800." in text
    assert "line-4999." in text


@pytest.mark.parametrize(
    ("err", "environ", "flags", "output", "kind"),
    [
        (Terminal(), {"TERM": "xterm"}, {}, None, LiveRun),
        (Terminal(), {"TERM": "xterm"}, {}, "json", LiveRun),
        (Terminal(), {"TERM": "xterm"}, {}, "jsonl", JsonLines),
        (io.StringIO(), {"TERM": "xterm"}, {}, None, PlainRun),
        (io.StringIO(), {"TERM": "xterm"}, {}, "json", Silent),
        (Terminal(), {"TERM": "dumb"}, {}, None, PlainRun),
        (Terminal(), {"TERM": "xterm", "CI": "true"}, {}, None, PlainRun),
        (Terminal(), {"TERM": "xterm"}, {"quiet": True}, None, Silent),
    ],
)
def test_the_view_fits_the_terminal(
    err: io.StringIO, environ: dict[str, str], flags: dict[str, bool], output: str | None, kind: type[object]
) -> None:
    view = run_view_for(console(err, environ, **flags), output=output)  # type: ignore[arg-type]
    assert type(view) is kind


def test_json_lines_are_the_events() -> None:
    run, out = Recorded(), io.StringIO()
    audit(run)
    view = run_view_for(open_console(environ={}, streams=(Terminal(), out, io.StringIO())), output="jsonl")
    for item in run.events:
        view.event(item)
    assert [json.loads(line)["type"] for line in out.getvalue().splitlines()] == [item.type for item in run.events]


# ---- plain lines ----


def plain_lines(run: Recorded) -> list[str]:
    err = io.StringIO()

    async def work() -> None:
        async with PlainRun(console(err, {}), RunTree(), lambda: LATE) as view:
            for item in run.events:
                view.event(item)

    asyncio.run(work())
    return err.getvalue().splitlines()


def test_plain_lines_tell_starts_ends_logs_failures_and_the_notification() -> None:
    run = Recorded()
    audit(run)
    run.ran("/0.9#0", "skipped", 100_000, phase="Audit", label="spare")
    finish(run)
    assert plain_lines(run) == [
        "review-changes: resumed, attempt 2 as wf_a_1",
        "== Collect",
        "1 answered from the journal",
        "[2/2] ok    read the diff  1200 tok  $0.0031  1.0s",
        "== Audit",
        "log: five dimensions",
        "[3/7] FAIL  security  800 tok  6.0s  the answer broke off",
        "None  /0.1 (index 1, line 7): agent 'security' failed",
        "[4/7] ok    日本語のラベル  15.8k tok  $1.25  26.9s",
        "[5/8] skip  spare  0 tok  1.0s",
        "review-changes: completed with failures · 4 done · 1 cached · 1 failed · 1 null result · 34.1k tok · $1.50"
        " · 3:17 · /runs/wf_a_1.output.json",
    ]


def test_recorded_answers_without_a_use_are_counted_in_the_words_of_a_plan() -> None:
    counts = {"done": 1, "unclaimed": 6, "rejected": 1}
    told = notice_text({"workflow": "a", "status": "completed", "counts": counts, "duration_ms": 0})
    assert told == "a: completed · 1 done · 6 not asked for any more · 1 rejected · 0 tok · 0.0s"


def test_a_phase_that_only_agents_name_begins_with_its_first_agent() -> None:
    run = Recorded()
    run.start(phases=["Find", "Check"])
    run.agent("#0", "cached", phase="Find")
    run.ran("#1", phase="Find", label="a")
    run.ran("#2", phase="Check", label="b")
    run.ran("#3", phase="Find", label="c")
    said = [" ".join(line.split()[:3]) for line in plain_lines(run)[1:]]
    assert said == ["1 answered from", "== Find", "[2/2] ok a", "== Check", "[3/3] ok b", "[4/4] ok c"]


def test_answers_from_the_journal_have_one_line_together() -> None:
    run = Recorded()
    run.start()
    for number in range(98):
        run.agent(f"#{number}", "cached")
    assert plain_lines(run) == ["audit: started as wf_a_1", "98 answered from the journal"]


def test_plain_lines_of_other_runs_are_not_told() -> None:
    run = Recorded()
    run.start()
    run.tell("task_progress", run_id="wf_b_2", type="workflow_log", message="not mine")
    assert plain_lines(run) == ["audit: started as wf_a_1"]


def test_no_line_can_steer_a_terminal() -> None:
    run = Recorded()
    run.start(workflow="a\x1b[2J")
    run.progress("workflow_phase", title="b\x1b\n")
    run.progress("workflow_log", message="c\x1b]0;t\x07\rd")
    run.progress("workflow_failure", where="e\x1b", code="f\x1b", message="g\x1b\u202e")
    run.ran("#0", "failed", label="h\x9b", error="i\x1b")
    run.tell("task_notification", workflow="j\x1b", status="k\x1b", reason="l\x1b\nm", error={"code": "m\x1b"})
    lines = plain_lines(run)
    assert len(lines) == 6
    assert all(line.isprintable() for line in lines)


def test_a_notification_says_why_a_run_is_paused_and_until_when() -> None:
    paused = {
        "workflow": "a",
        "status": "paused",
        "reason": "quota",
        "duration_ms": 900,
        "total_tokens": 7,
        "usage": {"total_tokens": 7},
    }
    assert notice_text({**paused, "reset_ms": NOW}) == "a: paused (quota until 2023-11-14T22:13:20Z) · 7 tok · 0.9s"
    assert notice_text(paused) == "a: paused (quota) · 7 tok · 0.9s"
    assert notice_text({**paused, "reset_ms": 1 << 80}) == "a: paused (quota) · 7 tok · 0.9s"
    failed = {"workflow": "a", "status": "failed", "error": {"code": "ValueError", "message": "no\nsuch"}}
    assert notice_text(failed) == "a: failed · 0 tok · 0.0s · ValueError: no such"


@pytest.mark.parametrize(("err", "says_why"), [(Terminal(), False), (io.StringIO(), False), (None, True)])
def test_a_view_leaves_it_to_its_command_to_say_why_the_run_failed(err: io.StringIO | None, says_why: bool) -> None:
    run, out = Recorded(), err or io.StringIO()
    run.start()
    error = {"code": "ValueError", "message": "ValueError: no good"}
    run.tell("task_notification", 1_000, workflow="audit", status="failed", counts={}, error=error)

    async def work() -> None:
        own = run_view_for(console(out, no_color=True))
        async with PlainRun(console(out, {}), RunTree(), lambda: LATE) if err is None else own as view:
            for item in run.events:
                view.event(item)

    asyncio.run(work())
    assert "audit: failed" in out.getvalue()
    assert ("no good" in out.getvalue()) is says_why
