"""What a fan-out says when it is over: the failures, one line of summary, and how it ended."""

import re
from collections.abc import Sequence

import msgspec

from fanfold.cli.cells import cut, one_line
from fanfold.cli.console import Console
from fanfold.cli.endings import FailedStepsError, WaitingError
from fanfold.cli.results import Row
from fanfold.cli.tally import Tally, seconds_text, tokens_text
from fanfold.cli.waiting_text import commands_for, waiting_json
from fanfold.control.waiting import Waiting
from fanfold.errors import BudgetExhaustedError
from fanfold.orchestration.ledger import RESOURCE

_BUDGET_SPENT = f"Budget exhausted on '{RESOURCE}': "
_RATE_LIMITED = re.compile(r"LLM error: .* (answered 429|\(429\))")
_LONGEST_NAME = 120
_LONGEST_REASON = 500
_MOST_NAMED = 5


def tell(console: Console, tally: Tally, rows: Sequence[Row], *, noun: str, seconds: float) -> None:
    """List the failures and what would have avoided them, then the summary; all on stderr."""
    failures = [row for row in rows if not row.success]
    if failures:
        console.warn(f"{len(failures)} failed:")
        for row in failures:
            console.warn(f"  {cut(one_line(row.item), _LONGEST_NAME)}: {cut(row.reason, _LONGEST_REASON)}")
    if any(_RATE_LIMITED.search(row.output) for row in failures):
        console.warn("hint: the provider does not take so many calls at once; try a smaller --concurrency")
    if tally.unanswered and any(row.is_parked for row in failures):
        tools = ", ".join(sorted(tally.unanswered))
        rules = " ".join(f"--allow {tool}" for tool in sorted(tally.unanswered))
        console.warn(f"hint: steps wanted to use {tools}, and nobody can be asked here; allow it with {rules},")
        console.warn(f"      or only some of it with a pattern such as --allow '{min(tally.unanswered)}(...)'")
    if tally.changed:
        named = cut(", ".join(sorted(map(one_line, tally.changed))), _LONGEST_NAME)
        console.warn(f"note: changed since it was recorded, so run again: {named}")
    if cut_short := sum(row.success and row.stop_reason == "length" for row in rows):
        console.warn(f"note: {cut_short} answers were cut at the model's output limit")
    console.say(summary(tally, noun=noun, seconds=seconds))


def summary(tally: Tally, *, noun: str, seconds: float) -> str:
    """`12 items: 12 from the journal, 0 run, 0 tokens`."""
    parts = [f"{tally.from_journal} from the journal"] if tally.from_journal else []
    parts.append(f"{tally.ran} run")
    if tally.failed:
        parts.append(f"{tally.failed} failed")
    parts.append(f"{tokens_text(tally.total_tokens)} tokens")
    if tally.ran:
        parts.append(seconds_text(seconds))
    return f"{tally.total} {noun}: {', '.join(parts)}"


class Hints(msgspec.Struct, frozen=True, kw_only=True):
    """How to go on, after each kind of end."""

    after_failures: str
    after_budget: str
    after_parked: str | None
    """None: what nobody could be asked for is not kept, and counts as failed."""
    waiting: Sequence[Waiting] = ()
    """What is kept, to be answered."""


def end(rows: Sequence[Row], *, noun: str, allow_failures: bool, hints: Hints) -> None:
    """Return when all is well.

    Raises:
        BudgetExhaustedError: some rows were refused for want of tokens.
        WaitingError: some wait for a person, unless `allow_failures`;
        FailedStepsError: others failed, likewise.
    """
    failures = [row for row in rows if not row.success]
    for row in failures:
        _, is_spent, reason = row.output.partition(_BUDGET_SPENT)
        if is_spent:
            raise BudgetExhaustedError(resource=RESOURCE, reason=one_line(reason)).with_hint(hints.after_budget)
    if not failures or allow_failures:
        return
    parked = sum(row.is_parked for row in failures)
    if parked and hints.after_parked is not None:
        raise _waiting(parked, len(failures) - parked, len(rows), noun, hints)
    raise FailedStepsError(f"{len(failures)} of {len(rows)} {noun} failed").with_hint(hints.after_failures)


def _waiting(parked: int, failed: int, total: int, noun: str, hints: Hints) -> WaitingError:
    also = f", and {failed} failed" if failed else ""
    error = WaitingError(
        f"{parked} of {total} {noun} wait for an approval or an answer{also}",
        {"waiting": [waiting_json(each) for each in hints.waiting]},
    )
    named = [" or ".join(commands_for(each)) for each in hints.waiting[:_MOST_NAMED]]
    return error.with_hint("\n".join(["see what waits with: fanfold inbox", *named, hints.after_parked or ""]))
