"""Compacting: a conversation made shorter, or begun anew, because the host asked for it."""

import msgspec

from fanfold.contracts.facts import Compacted, NewFact
from fanfold.kernel.transcript import messages_to_keep
from fanfold.session.driver import Driver
from fanfold.session.effects import Effects

CLEARED = "(The conversation was cleared.)"
"""What stands in the log for the answer to a prompt that was unfinished then."""
KEPT_SHARE = 4
"""The newest messages are kept, up to a fourth of what there is."""


class Compaction(msgspec.Struct, frozen=True):
    """How many messages there were before, and are now."""

    before: int
    after: int


async def compact(driver: Driver, effects: Effects, length: int) -> Compaction:
    """Replace the older messages of the transcript by a summary, because the host asked for it."""
    state = driver.state
    before = 0 if state.transcript is None else state.transcript.length
    kept = 0 if state.transcript is None else messages_to_keep(state.transcript, state.context_tokens // KEPT_SHARE)
    if state.phase not in ("idle", "done") or before - kept < 2:
        return Compaction(before, before)
    await driver.append([await effects.model.compact(state, kept, f"compaction:host:{length}")])
    return Compaction(before, 0 if driver.state.transcript is None else driver.state.transcript.length)


async def clear(driver: Driver, length: int) -> None:
    """Let the next prompt begin a new conversation. The log keeps what was said."""
    await driver.interrupt(CLEARED)  # what has failed, or waits for a person, is over too
    if driver.state.transcript is not None:
        await driver.append([NewFact(f"compaction:clear:{length}", None, Compacted(summary=""))])
