"""While a command runs its session, other processes can answer, steer and cancel it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fanfold.cli.console import Console
from fanfold.control.place import HAS_UNIX_SOCKETS
from fanfold.control.server import ControlServer
from fanfold.errors import ControlError
from fanfold.session.session import Session


@asynccontextmanager
async def served(
    session: Session, console: Console, *, known_as: str | None = None, is_needed: bool, is_told: bool
) -> AsyncGenerator[None]:
    """Serve `session` while this is entered, where that can be.

    Args:
        is_needed: without it the command would wait for nothing.
        is_told: a note on stderr may say that it cannot be.

    Raises:
        ControlError: `is_needed`, and it cannot be.
    """
    server = ControlServer(session.workspace, session.portal)
    server.add(session, known_as)
    try:
        await server.start_async()
    except ControlError as error:
        if is_needed:
            raise
        if HAS_UNIX_SOCKETS and is_told:
            console.say(f"note: {error}")
    try:
        yield
    finally:
        await server.close_async()
