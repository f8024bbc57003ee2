"""All that waits for a person in the current directory's workspace: in running processes, and parked."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from fanfold.cli.cells import cut
from fanfold.cli.console import Console
from fanfold.cli.endings import NotThereError
from fanfold.cli.opening import open_store
from fanfold.control.client import LiveServer, look
from fanfold.control.parked import parked_in, parked_steps
from fanfold.control.waiting import Waiting, matching
from fanfold.control.wire import LiveSession
from fanfold.nearest import did_you_mean

_MOST_CANDIDATES = 10
_LONGEST_HELP = 200


class LiveOne(msgspec.Struct, frozen=True):
    """A session that can be asked."""

    server: LiveServer
    session: LiveSession


class Here(msgspec.Struct, frozen=True):
    waiting: list[Waiting]
    """Oldest first, as far as that is known."""
    live: list[LiveOne]
    answered: dict[str, str]
    """What has its answer already, by id, and what that was."""
    notes: list[str]
    """What could not be seen, and why."""

    def find(self, typed: str) -> Waiting:
        """The one that `typed` means.

        Raises:
            NotThereError: nothing waits under that id.
            click.UsageError: it may mean several.
        """
        found = matching(self.waiting, typed)
        if len(found) == 1:
            return found[0]
        if found:
            listed = "".join(f"\n  {each.id}" for each in found[:_MOST_CANDIDATES])
            raise click.UsageError(f"'{typed}' may mean {len(found)} things that wait; give more of the id:{listed}")
        for known, what in self.answered.items():
            if known == typed or known.endswith(f"/{typed}"):
                raise NotThereError(f"'{known}' does not wait any more: it was {what}")
        near = cut(did_you_mean(typed, [each.id for each in self.waiting]), _LONGEST_HELP) if self.waiting else ""
        raise NotThereError(f"nothing waits here as '{typed}'{near}").with_hint("see what waits with: fanfold inbox")

    def server_of(self, name: str) -> LiveServer | None:
        """Where the session of that name, or id, can be asked."""
        one = self.live_one(name)
        return None if one is None else one.server

    def live_one(self, name: str) -> LiveOne | None:
        return next((each for each in self.live if name in (each.session.name, each.session.session_id)), None)

    def tell(self, console: Console) -> None:
        for note in self.notes:
            console.warn(f"note: {note}")


async def look_here() -> Here:
    workspace = Path.cwd()
    found = await look(workspace)
    async with open_store() as store:
        parked = await parked_in(workspace, store)
    live = [LiveOne(server, session) for server, seen in found.answered for session in seen.sessions]
    waiting = [each for _, seen in found.answered for each in seen.waiting]
    waiting += _not_run(parked.waiting, [each.session for each in live])
    notes = [f"{error}; what waits there is not listed" for _, error in found.silent]
    notes += [f"process {seen.process}: {seen.left_out} more wait" for _, seen in found.answered if seen.left_out]
    notes += [f"{name} cannot be read: {error}" for name, error in parked.unreadable.items()]
    answered = dict(parked.answered)
    for _, seen in found.answered:
        answered |= seen.answered
    return Here(sorted(waiting, key=lambda each: each.since_ms or 0), live, answered, notes)


def parked_in_workflow(workflow_id: str) -> list[Waiting]:
    """What its journal has left parked."""

    async def found() -> list[Waiting]:
        async with open_store() as store:
            return await parked_steps(store, workflow_id)

    return asyncio.run(found())


def _not_run(parked: Sequence[Waiting], live: Sequence[LiveSession]) -> list[Waiting]:
    """Without those of sessions and workflows that a process runs: it has told of them itself."""
    sessions = {each.session_id for each in live}
    workflows = {each.name for each in live} - sessions
    return [each for each in parked if each.owner not in (workflows if each.source == "workflow" else sessions)]
