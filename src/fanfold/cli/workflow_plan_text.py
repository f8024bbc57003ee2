"""The plan of a resume as people read it."""

from collections.abc import Iterator

from fanfold.cli.cells import one_line
from fanfold.cli.plan_text import PlanLine, plan_text
from fanfold.cli.tally import rough_tokens
from fanfold.contracts.workflow_runs import PlanAction, PlannedCall, WorkflowPlan
from fanfold.workflow.plan import RECORDED

_ACTIONS: tuple[PlanAction, ...] = ("cached", "re-run", "new", "not run", "skip", "ask")
_ALWAYS_TOLD = ("cached", "re-run", "new")
_MODEL_CHANGED = "model changed"


def plan_line(plan: WorkflowPlan) -> str:
    """`cached 98 · re-run 4 · new 0 · est. 210k tok`; `not run` too where only what failed may run, `skip` and `ask`
    where something does."""
    counts = [f"{action} {plan.count(action)}" for action in _ACTIONS if _is_told(plan, action)]
    more = "" if plan.is_complete else ", and what follows from them"
    return " · ".join([*counts, f"est. {rough_tokens(plan.estimated_tokens)} tok{more}"])


def _is_told(plan: WorkflowPlan, action: PlanAction) -> bool:
    if action == "not run":
        return plan.only_failed
    return action in _ALWAYS_TOLD or plan.count(action) > 0


def plan_notes(plan: WorkflowPlan) -> Iterator[str]:
    """What somebody should know before it is spent."""
    if plan.script_changed:
        yield "the script has changed since the run was launched or last resumed"
    models = {each.changes for each in plan.calls if each.reason == _MODEL_CHANGED and each.changes is not None}
    for changes in sorted(models):
        before = [line[1:] for line in changes if line.startswith("-")]
        if before:
            yield f"agents run again because their model has changed; with --model {before[0]} they would not"
    if asking := plan.count("ask"):
        agents = "1 agent waits" if asking == 1 else f"{asking} agents wait"
        yield f"{agents} for a decision: --repeat rerun runs again what was begun before, --repeat skip leaves it out"
    if plan.error is not None:
        line = "" if plan.error.line is None else f" (line {plan.error.line})"
        yield f"the script ends with an error: {one_line(plan.error.message)}{line}"


def plan_page(plan: WorkflowPlan, width: int | None) -> str:
    """The line, then each call that is not simply answered, with its reason and the lines of it that have changed."""
    lines = [plan_line(plan), *plan_notes(plan)]
    if plan.is_fork:
        lines.append(f"in a new run, which begins with the answers of {plan.run_id} and leaves that as it is")
    rows = [_row(each) for each in plan.calls if each.reason != RECORDED]
    if rows:
        lines.append("\n" + plan_text("agent", rows, spent_tokens=plan.spent_tokens, width=width).rstrip("\n"))
    if not plan.is_complete:
        lines.append("what comes behind depends on their results")
    elif plan.unclaimed:
        lines.append(f"{len(plan.unclaimed)} recorded calls are not asked for any more; they stay recorded")
    return "\n".join(lines) + "\n"


def _row(call: PlannedCall) -> PlanLine:
    # An answer that is given to another question than the one that it was recorded for.
    action = "kept" if call.action == "cached" else call.action
    return PlanLine(call.label, action, call.reason, call.estimated_tokens, call.changes or ())
