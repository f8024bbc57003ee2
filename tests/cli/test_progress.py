"""Progress: the same events in three renderings, none of which costs more for more items."""

import asyncio
import io
import json
import time
from collections.abc import Sequence

import pytest

from fanfold.cli.console import Console, open_console
from fanfold.cli.live import LiveView
from fanfold.cli.progress import JsonLines, PlainLines, Silent, view_for
from fanfold.cli.results import Row
from fanfold.cli.tally import Tally, seconds_text, tokens_text
from fanfold.contracts.events import AgentEvent, event


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ClosedPipe(io.StringIO):
    def write(self, text: str, /) -> int:
        raise BrokenPipeError


def console(out: io.StringIO, err: io.StringIO, environ: dict[str, str] | None = None, **flags: bool) -> Console:
    return open_console(environ=environ or {}, streams=(Terminal(), out, err), **flags)


def started(task: str, agent: str = "general", name: str = "") -> AgentEvent:
    return event("subagent_start", task_id=task, agent=agent, description=name)


def ended(task: str, tokens: int = 20, *, success: bool = True) -> AgentEvent:
    return event("subagent_end", task_id=task, success=success, output="", usage={"total_tokens": tokens})


def progressed(task: str, tokens: int) -> AgentEvent:
    return event("subagent_progress", task_id=task, status="turn_completed", metadata={"total_tokens": tokens})


def row(item: str, *, success: bool = True, output: str = "", tokens: int = 412, journal: bool = False) -> Row:
    return Row(item=item, success=success, output=output, total_tokens=tokens, seconds=1.8, is_cached=journal)


def folded(tally: Tally, events: Sequence[AgentEvent]) -> Tally:
    for each in events:
        tally.observe(each, 0.0)
    return tally


def test_a_step_runs_from_its_start_to_its_end() -> None:
    tally = folded(Tally(3), [started("a"), started("b"), progressed("b", 100)])
    assert (len(tally.running), tally.queued, tally.total_tokens) == (2, 1, 100)
    folded(tally, [ended("b", 150)])
    assert (list(tally.running), tally.total_tokens) == (["a"], 150)


def test_events_of_unknown_types_and_steps_change_nothing() -> None:
    tally = folded(Tally(1), [event("surprise", x=1), progressed("gone", 5), ended("gone", 5)])
    assert (tally.total_tokens, tally.finished) == (0, 0)


def test_items_from_the_journal_did_not_run() -> None:
    tally = Tally(3)
    for each in (row("a", journal=True), row("b"), row("c", success=False)):
        tally.finish(each)
    assert (tally.finished, tally.from_journal, tally.ran, tally.failed) == (3, 1, 2, 1)


def test_plain_lines_say_how_far_it_is_and_what_it_cost() -> None:
    err = io.StringIO()
    tally = Tally(12, done=1)
    view = PlainLines(console(io.StringIO(), err), tally)
    view.finish(row("src/a.py"))
    view.finish(row("src/b.py", success=False, output="Task failed:\n\x1b[2Jno", tokens=12_400))
    view.finish(row("src/c.py", journal=True))
    assert err.getvalue().splitlines() == [
        "[ 2/12] ok    src/a.py  412 tok  1.8s",
        "[ 3/12] FAIL  src/b.py  12.4k tok  1.8s  Task failed: [2Jno",
    ]


def test_json_lines_are_the_events_and_each_finished_item() -> None:
    out = io.StringIO()
    view = JsonLines(console(out, io.StringIO()), Tally(1))
    view.event(started("a"))
    view.finish(row("src/a.py", output="fine"))
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["type"], first["payload"]["task_id"]) == ("subagent_start", "a")
    assert second["type"] == "item_end"
    assert second["payload"] == {
        "item": "src/a.py",
        "success": True,
        "output": "fine",
        "total_tokens": 412,
        "is_cached": False,
    }


def test_the_work_stops_when_nobody_reads_the_events() -> None:
    async def work() -> None:
        async with JsonLines(console(ClosedPipe(), io.StringIO()), Tally(1)) as view:
            view.event(started("a"))
            view.event(started("b"))
            await asyncio.Event().wait()

    with pytest.raises(BrokenPipeError):
        asyncio.run(work())


def live(items: int) -> tuple[LiveView, Terminal, Tally]:
    err = Terminal()
    tally = Tally(items, limit_tokens=50_000)
    return LiveView(console(io.StringIO(), err, {"TERM": "xterm"}), tally, "map"), err, tally


def test_the_live_view_shows_who_runs_and_leaves_nothing_behind() -> None:
    view, err, _ = live(1000)

    async def work() -> None:
        async with view:
            view.event(started("t1", "explore", "src/one.py"))
            view.finish(row("src/zero.py", success=False))
            await asyncio.sleep(0.4)  # two frames

    asyncio.run(work())
    shown = err.getvalue()
    assert "src/one.py" in shown
    assert "explore" in shown
    assert "1/1000" in shown
    assert "1 failed" in shown
    assert "50.0k" in shown
    assert "src/zero.py" not in shown
    assert shown.endswith("\x1b[2K")  # the last thing is erasing


def test_a_frame_of_a_thousand_items_costs_little() -> None:
    view, _, tally = live(1000)
    for number in range(1000):
        tally.observe(started(f"t{number}", "general", f"src/file{number}.py"), 0.0)
    from rich.console import Console as RichConsole

    rich = RichConsole(file=io.StringIO(), force_terminal=True, width=100, height=40)
    rich.print(view)
    start = time.process_time()
    for _ in range(10):
        rich.print(view)
    # Drawing a thousand rows takes 150 ms and more; the bound leaves room for a busy machine.
    assert (time.process_time() - start) / 10 < 0.05


@pytest.mark.parametrize(
    ("err", "environ", "flags", "kind"),
    [
        (Terminal(), {"TERM": "xterm"}, {}, LiveView),
        (io.StringIO(), {"TERM": "xterm"}, {}, PlainLines),
        (Terminal(), {"TERM": "dumb"}, {}, PlainLines),
        (Terminal(), {"TERM": "xterm", "CI": "true"}, {}, PlainLines),
        (Terminal(), {"TERM": "xterm"}, {"quiet": True}, Silent),
        (io.StringIO(), {}, {"quiet": True}, Silent),
    ],
)
def test_the_view_fits_the_terminal(
    err: io.StringIO, environ: dict[str, str], flags: dict[str, bool], kind: type[object]
) -> None:
    view = view_for(console(io.StringIO(), err, environ, **flags), Tally(1), title="map", output=None)
    assert type(view) is kind


def test_a_json_document_has_no_lines_beside_it() -> None:
    view = view_for(console(io.StringIO(), io.StringIO()), Tally(1), title="map", output="json")
    assert type(view) is Silent


@pytest.mark.parametrize(
    ("environ", "flags", "has_colour"),
    [
        ({"TERM": "xterm"}, {}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, {}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, {}, True),
        ({"TERM": "xterm"}, {"no_color": True}, False),
        ({"TERM": "dumb"}, {}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, {}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, {}, False),
    ],
)
def test_colour_is_decided_by_flag_then_environment_then_terminal(
    environ: dict[str, str], flags: dict[str, bool], has_colour: bool
) -> None:
    assert console(io.StringIO(), Terminal(), environ, **flags).has_colour is has_colour


@pytest.mark.parametrize(("environ", "flags"), [({"CI": "1"}, {}), ({"TERM": "dumb"}, {}), ({}, {"no_input": True})])
def test_nobody_is_asked_where_nobody_can_answer(environ: dict[str, str], flags: dict[str, bool]) -> None:
    assert console(Terminal(), Terminal(), {"TERM": "xterm"}).may_ask
    assert not console(Terminal(), Terminal(), {"TERM": "xterm", **environ}, **flags).may_ask


def test_amounts_are_short() -> None:
    assert [tokens_text(n) for n in (0, 9_999, 12_400, 3_100_000)] == ["0", "9999", "12.4k", "3.1M"]
    assert [seconds_text(s) for s in (0.04, 59.94, 127, 3_727)] == ["0.0s", "59.9s", "2:07", "1:02:07"]
