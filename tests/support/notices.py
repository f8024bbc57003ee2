"""Notices for sessions of tests, and where a part of a host would keep them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from fanfold import Session
from fanfold.contracts.notices import Notice
from fanfold.session.notices import Notices

ONE, TWO, THREE = (Notice(name, f"<task_notification>{name}</task_notification>") for name in ("one", "two", "three"))


def notices_of(session: Session) -> Notices:
    """As the parts that a session is assembled with have it."""
    return session._conversation.notices


async def runs(session: Session) -> list[tuple[str, str]]:
    """(prompt, status) of each run."""
    return [(run.prompt, run.status) for run in await session.runs_async()]


class FileOutbox:
    """Keeps them in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.asked = 0
        self.told: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def put(self, *notices: Notice) -> None:
        self._write({**self.kept(), **{each.id: each.text for each in notices}})

    def kept(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._path.read_text()) if self._path.exists() else {}
        return found

    def _write(self, kept: dict[str, str]) -> None:
        self._path.write_text(json.dumps(kept))

    async def pending(self) -> Sequence[Notice]:
        self.asked += 1
        await self.may_answer.wait()
        return [Notice(id, text) for id, text in self.kept().items()]

    async def delivered(self, id: str) -> None:
        self.told.append(id)
        self._write({each: text for each, text in self.kept().items() if each != id})
