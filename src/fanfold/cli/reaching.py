"""The live session that a command means, in whichever process it runs."""

from pathlib import Path

from fanfold.cli.cells import cut
from fanfold.cli.endings import NotThereError
from fanfold.cli.waiting_here import Here, LiveOne, look_here
from fanfold.control.place import require_unix_sockets
from fanfold.live_sessions import LOG_DIRECTORY
from fanfold.nearest import did_you_mean
from fanfold.stores.thread_name import file_name

_LONGEST_HELP = 200


async def live_session(name: str, instead: str) -> LiveOne:
    """The session of that name, or id, which some process serves.

    Raises:
        ControlError: no process can be reached so on this machine.
        NotThereError: there is none; `instead` is what to do with one that does not run.
    """
    require_unix_sockets()
    here = await look_here()
    one = here.live_one(name)
    if one is None:
        raise _not_running(here, name, instead)
    return one


async def live_target(target: str) -> tuple[LiveOne, str | None]:
    """The session that `SESSION[/STEP]` names, and the step. Raises as `live_session`."""
    require_unix_sockets()
    here = await look_here()
    one = here.live_one(target)
    if one is not None:
        return one, None
    named = [
        (each, target[len(name) + 1 :])
        for each in here.live
        for name in (each.session.name, each.session.session_id)
        if target.startswith(f"{name}/")
    ]
    if not named:
        raise _not_running(here, target.partition("/")[0], "there is nothing to cancel")
    return min(named, key=lambda each: len(each[1]))  # the longest name


def _not_running(here: Here, name: str, instead: str) -> NotThereError:
    silent = "".join(f"; {note}" for note in here.notes if "process" in note)
    if (Path(LOG_DIRECTORY) / file_name(name)).is_file():
        error = NotThereError(f"session '{name}' does not run just now, in no process that can be asked{silent}")
        return error.with_hint(instead)
    names = [each.session.name for each in here.live]
    near = cut(did_you_mean(name, names), _LONGEST_HELP) if names else ""
    return NotThereError(f"no session or workflow '{name}' runs here{near}{silent}")
