"""A frame of the tree of a workflow run, as lines of styled pieces: the run, its phases, the agents that there is room
for.

Only what is shown is laid out. Phases that are finished take one line each, and one together where they are many. Of
the agents those that wait for a person go first, then those that run, that failed, that are queued, that have ended.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from fanfold.cli.cells import cut, pad, width_of
from fanfold.cli.event_fields import count_of, text_of
from fanfold.cli.run_tree_state import AgentRow, PhaseNode, RunTree
from fanfold.cli.tally import seconds_text, tokens_text

Line = list[tuple[str, str]]
"""Pieces of one line: (text, style)."""

_LOOK = {
    "queued": ("·", "dim"),
    "waiting": ("?", "yellow"),
    "started": ("▸", "cyan"),
    "done": ("✓", "green"),
    "cached": ("↺", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("■", "yellow"),
    "skipped": ("-", "dim"),
}
_RANKS: tuple[Callable[[PhaseNode], Collection[AgentRow]], ...] = (
    lambda phase: phase.waiting.values(),
    lambda phase: phase.running.values(),
    lambda phase: phase.failed,
    lambda phase: phase.queued.values(),
    lambda phase: phase.ended,
)
_UNKNOWN = ("?", "dim")
_STALLED = ("!", "yellow")
_STYLE_OF_STATUS = {"completed": "green", "completed_with_failures": "yellow", "failed": "red"}
_COUNTED = ("done", "cached", "running", "waiting", "queued", "failed", "skipped", "cancelled")
_ALWAYS_COUNTED = ("done", "running", "queued")
_BAR_CELLS = 24
_SHORTEST_LABEL = 8
_TOKEN_CELLS, _MONEY_CELLS, _TIME_CELLS = 7, 9, 8
_WIDTHS = ((110, 20, 16), (78, 12, 12), (58, 0, 12))
"""Cells of the model and the tool from that many columns on; below the last only tokens and time stand in a row."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """What stands behind a label: nothing that no agent of the run has told of, so that labels have its room."""

    width: int
    model_cells: int
    tool_cells: int
    has_money: bool


def _columns_of(tree: RunTree, width: int) -> _Columns:
    model, tool = next(((model, tool) for least, model, tool in _WIDTHS if width >= least), (0, 0))
    has_money = tree.cost_usd is not None and width >= _WIDTHS[-1][0]
    return _Columns(width, model if tree.has_models else 0, tool, has_money)


def frame(tree: RunTree, width: int, height: int, now_ms: int) -> list[Line]:
    """At most `height` lines of at most `width` cells."""
    lines = _header(tree, width, now_ms)
    lines += _body(tree, width, max(1, height - len(lines)), now_ms)
    return [_clipped(line, width) for line in lines[:height]]


def _clipped(line: Line, width: int) -> Line:
    clipped: Line = []
    for text, style in line:
        size = width_of(text)
        if size > width:
            clipped.append((cut(text, width), style))
            break
        clipped.append((text, style))
        width -= size
    return clipped


# ---- the run ----


def _header(tree: RunTree, width: int, now_ms: int) -> list[Line]:
    notice = tree.notice
    title: Line = [(tree.workflow or text_of(tree.run_id) or "workflow", "bold")]
    if tree.attempt > 1:
        title.append((f"attempt {tree.attempt}", ""))
    status = "running" if notice is None else text_of(notice.get("status"))
    title.append((status.replace("_", " "), _STYLE_OF_STATUS.get(status, "cyan" if notice is None else "yellow")))
    if notice is not None:
        title.append((seconds_text(count_of(notice.get("duration_ms")) / 1000), "dim"))
    elif tree.begun_ms is not None:
        title.append((seconds_text(max(0, now_ms - tree.begun_ms) / 1000), "dim"))
    return [*_flowed(title, width), *_flowed(_counts(tree, now_ms), width), _spending(tree, width)]


def _counts(tree: RunTree, now_ms: int) -> Line:
    counts = {**tree.sums.ends, "running": len(tree.running), "waiting": len(tree.waiting), "queued": len(tree.queued)}
    parts: Line = []
    for name in _COUNTED:
        count = counts.get(name, 0)
        if count or name in _ALWAYS_COUNTED:
            parts.append((f"{count} {name}", {"failed": "red", "waiting": "yellow"}.get(name, "")))
    if silent := tree.silent(now_ms):
        parts.append((f"{silent} silent", "yellow"))
    return parts


def _spending(tree: RunTree, width: int) -> Line:
    money = "" if tree.cost_usd is None else f" · {money_text(tree.cost_usd)}"
    limit = tree.limit_tokens
    if limit is None:
        return [(f"{tokens_text(tree.total_tokens)} tok{money}", "dim")]
    spent = tree.spent_tokens
    cells = min(_BAR_CELLS, width // 4)
    filled = min(cells, cells * spent // limit)
    style = "red" if spent >= limit else "yellow" if spent >= limit * 0.8 else "green"
    bar: Line = [("█" * filled, style), ("░" * (cells - filled), "dim")]
    return [("budget ", ""), *bar, (f" {tokens_text(spent)} / {tokens_text(limit)}{money}", "")]


def _flowed(parts: Line, width: int) -> list[Line]:
    """The parts with dots between them, on as many lines as they need."""
    lines: list[Line] = [[]]
    used = 0
    for text, style in parts:
        size = width_of(text)
        if lines[-1] and used + 3 + size > width:
            lines.append([])
            used = 0
        if lines[-1]:
            lines[-1].append((" · ", "dim"))
            used += 3
        lines[-1].append((text, style))
        used += size
    return lines


# ---- its phases ----


def _body(tree: RunTree, width: int, room: int, now_ms: int) -> list[Line]:
    columns = _columns_of(tree, width)
    finished = [phase for phase in tree.phases.values() if tree.is_finished(phase)]
    others = [phase for phase in tree.phases.values() if not tree.is_finished(phase)]
    kept = max(1, room // 3) if others else room
    folded = finished[: len(finished) - kept + 1] if len(finished) > kept else []
    lines = [_folded(folded, columns)] if folded else []
    lines += [_phase(tree, phase, columns, now_ms) for phase in finished[len(folded) :]]
    room -= len(lines)
    # Those with agents first, where not all have room.
    shown = others if len(others) <= max(1, room // 2) else sorted(others, key=_is_idle)[: max(1, room // 2)]
    room -= len(shown) + (len(shown) < len(others))
    chosen = _chosen(shown, room)
    for phase, rows in zip(shown, chosen, strict=True):
        lines.append(_phase(tree, phase, columns, now_ms))
        lines += [_agent(row, columns, now_ms) for row in rows]
    if len(shown) < len(others):
        lines.append([(f"  … and {len(others) - len(shown)} more phases", "dim")])
    return lines


def _is_idle(phase: PhaseNode) -> bool:
    return not phase.is_active


def _chosen(phases: Sequence[PhaseNode], room: int) -> list[list[AgentRow]]:
    """Rows of each phase, in the order of its agents: as many as there is room for."""
    chosen = [list[AgentRow]() for _ in phases]
    for rank in _RANKS:
        sources = [rank(phase) for phase in phases]
        for rows, source, count in zip(chosen, sources, _shares([len(each) for each in sources], room), strict=True):
            rows += islice(source, count)
            room -= count
    for rows in chosen:
        rows.sort(key=lambda row: row.number)
    return chosen


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """`room` dealt out evenly, to nobody more than is wanted."""
    shares = [0] * len(wanted)
    hungry: list[int] = [index for index, count in enumerate(wanted) if count]
    while hungry and room > 0:
        portion = max(1, room // len(hungry))
        for index in hungry:
            more = min(portion, wanted[index] - shares[index], room)
            shares[index] += more
            room -= more
        hungry = [index for index in hungry if shares[index] < wanted[index]]
    return shares


def _folded(phases: Sequence[PhaseNode], columns: _Columns) -> Line:
    agents = sum(phase.sums.ended for phase in phases)
    failed = sum(phase.sums.ends["failed"] for phase in phases)
    costs = [phase.sums.cost_usd for phase in phases if phase.sums.cost_usd is not None]
    text = f"✓ {len(phases)} phases  {agents} agents" + (f" · {failed} failed" if failed else "")
    tokens = sum(phase.sums.total_tokens for phase in phases)
    return _row(text, "dim", [], tokens, sum(costs) if costs else None, None, columns)


def _phase(tree: RunTree, phase: PhaseNode, columns: _Columns, now_ms: int) -> Line:
    is_finished = tree.is_finished(phase)
    failed = phase.sums.ends["failed"]
    parts = [f"{phase.sums.ended}/{phase.total}"] if phase.total else []
    counts = ((len(phase.running), "running"), (len(phase.waiting), "waiting"), (failed, "failed"))
    parts += [f"{count} {word}" for count, word in counts if count]
    glyph, style = ("▸", "bold") if phase.begun_ms is not None else ("·", "dim")
    if is_finished:
        worst = "failed" if failed else "cancelled" if phase.sums.ends.get("cancelled") else "done"
        glyph, style = _LOOK[worst][0], "dim" if worst == "done" else _LOOK[worst][1]
    text = f"{glyph} {phase.title or 'agents'}" + (f"  {' · '.join(parts)}" if parts else "")
    elapsed = None
    if phase.begun_ms is not None:
        elapsed = max(0, (now_ms if phase.is_active else phase.last_ms or phase.begun_ms) - phase.begun_ms)
    return _row(text, style, [], phase.sums.total_tokens, phase.sums.cost_usd, elapsed, columns)


# ---- its agents ----


def _agent(row: AgentRow, columns: _Columns, now_ms: int) -> Line:
    glyph, style = _LOOK.get(row.status, _UNKNOWN)
    label, tool, tool_style = row.label, row.tool, "dim"
    is_told_at_length = bool(row.error or row.waits)  # which is worth all the room
    if row.waits:
        label = _waiting(row, columns)
    elif row.error:
        glyph, style = _LOOK["waiting"] if row.is_parked else (glyph, style)
        label = f"{label}: {row.error}"
    elif row.ended_ms is not None:
        tool = f"{row.tools} tools" if row.tools > 1 else "1 tool" if row.tools else ""
    elif silence := row.silent_ms(now_ms):
        glyph, style = _STALLED
        tool, tool_style = f"silent {seconds_text(silence / 1000)}", "yellow"
        label = label if columns.tool_cells else f"{tool}: {label}"
    cells: Line = []
    if columns.model_cells and not is_told_at_length:
        cells.append(("  " + _cell(row.model.rpartition("/")[2], columns.model_cells), "dim"))
    if columns.tool_cells and not is_told_at_length:
        cells.append(("  " + _cell(tool, columns.tool_cells), tool_style))
    line = _row(f"  {glyph} {label}", "", cells, row.total_tokens, row.cost_usd, row.elapsed_ms(now_ms), columns)
    text = line[0][0]
    return [(text[:3], style), (text[3:], ""), *line[1:]]


def _waiting(row: AgentRow, columns: _Columns) -> str:
    """With the end of the id, which is enough unless another run of the workflow waits too: whatever has to be cut, it
    is not that."""
    ask, *others = row.waits.values()
    more = f" and {len(others)} more" if others else ""
    needed = f"{ask.verb} {ask.id.partition('/')[2]}{more}"
    amounts = _TOKEN_CELLS + _TIME_CELLS + (_MONEY_CELLS if columns.has_money else 0)
    room = columns.width - amounts - width_of(f"  ? : {needed} …")
    if room < _SHORTEST_LABEL:
        return f"{needed} · {row.label}"
    return f"{cut(row.label, room)}: {needed} · {ask.about}"


def _row(
    text: str,
    style: str,
    cells: Iterable[tuple[str, str]],
    tokens: int,
    money: float | None,
    ms: int | None,
    columns: _Columns,
) -> Line:
    """`text`, the cells, then tokens, money and time at the right edge."""
    cells = list(cells)
    amounts = pad(tokens_text(tokens) if tokens else "", _TOKEN_CELLS, to_right=True)
    if columns.has_money:
        amounts += pad("" if money is None else money_text(money), _MONEY_CELLS, to_right=True)
    amounts += pad("" if ms is None else seconds_text(ms / 1000), _TIME_CELLS, to_right=True)
    room = max(8, columns.width - width_of(amounts) - sum(width_of(each) for each, _ in cells))
    return [(_cell(text, room), style), *cells, (amounts, "dim")]


def _cell(text: str, cells: int) -> str:
    return pad(cut(text, cells), cells)


def money_text(usd: float) -> str:
    """`$0.0042`, `$12.34`."""
    return f"${usd:.4f}" if usd < 1 else f"${usd:.2f}"
