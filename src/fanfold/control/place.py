"""The place where processes meet: one socket for each server, in a folder that only its user can enter.

`<folder>/<key of the workspace>.<process>.<number>.sock`. The name is short whatever the workspace is called, for the
address of such a socket may have about a hundred bytes, and it is found again by whoever knows the workspace. The
folder is `$XDG_RUNTIME_DIR/fanfold`, else `/run/user/<uid>/fanfold`, else `/tmp/fanfold-<uid>`: the first that there
can be. A client looks into all of them.

It lies below `/run` or `/tmp`, which the sandbox of `bash` hides, and not in the workspace, which it shows: or a tool
could approve its own calls.
"""

import errno
import itertools
import os
import socket
import stat
import struct
import sys
import weakref
from pathlib import Path

from fanfold.errors import ControlError
from fanfold.kernel.step_identity import digest

HAS_UNIX_SOCKETS = hasattr(socket, "AF_UNIX") and hasattr(os, "geteuid")
MAX_ADDRESS_BYTES = 103
"""Of the path of a socket: Linux takes 107, macOS 103."""
BACKLOG = 16

_HIDDEN = ("/run", "/tmp")
_KEY_CHARS = 16
_SUFFIX = ".sock"
_UNFINISHED = ".new"
"""Stands behind the name of a socket that takes no connections yet."""
_LONGEST_NAME = _KEY_CHARS + len(".4194304.9999") + len(_SUFFIX) + len(_UNFINISHED)
_PEER = struct.Struct("3i")
_numbers = itertools.count(1)
_own: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()
"""Sockets that a forked child must not keep: it would take connections, or hold them open, and answer nothing."""


def require_unix_sockets(*, has_them: bool = HAS_UNIX_SOCKETS) -> None:
    """Raises ControlError, `CONTROL_UNAVAILABLE`."""
    if not has_them:
        raise ControlError(
            "CONTROL_UNAVAILABLE",
            f"no running session can be reached from elsewhere: Python has no Unix sockets on {sys.platform}",
        )


def open_listener(workspace: str | Path) -> tuple[socket.socket, Path]:
    """A socket that takes connections for the sessions of `workspace`, and its path. What dead processes have left of
    any workspace is removed.

    Raises:
        ControlError: `CONTROL_UNAVAILABLE`, there can be none.
    """
    require_unix_sockets()
    folder, key = _own_folder(os.path.realpath(workspace)), _key(workspace)
    _remove_dead(folder)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    not_for_children(listener)
    try:
        listener.setblocking(False)
        return listener, _bound(listener, folder, key)
    except OSError as error:
        listener.close()
        raise _unavailable(f"no socket can be opened in {folder}: {error.strerror or error}") from error
    except BaseException:
        listener.close()
        raise


def not_for_children(opened: socket.socket) -> None:
    """Keep this socket from processes that are forked off this one."""
    _own.add(opened)


def remove(path: Path) -> None:
    """Remove the socket at `path`, if it is there."""
    try:
        path.unlink()
    except OSError:
        pass  # somebody cleaned up, and no client is misled: it takes no connections any more


def sockets_of(workspace: str | Path) -> list[tuple[Path, int]]:
    """The sockets of servers of `workspace`, oldest process number first, each with its process. Some may be dead."""
    if not HAS_UNIX_SOCKETS:
        return []
    key = _key(workspace)
    found = {path: process for folder in _folders() if _fault_of(folder) is None for path, process in _in(folder, key)}
    return sorted(found.items(), key=lambda each: each[1])


def remove_if_dead(path: Path, process: int) -> None:
    """Remove a socket that takes no connections and whose process there is not."""
    if not _is_alive(process):
        remove(path)


def process_of_peer(peer: socket.socket, *, uid: int | None = None) -> int | None:
    """Who is at the other end: the number of the process, 0 where the system does not tell; None for one of another
    user than `uid` (this process's own)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0  # nobody else can enter the folder
    process, its_uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return process if its_uid == (os.geteuid() if uid is None else uid) else None


def _leave_to_parent() -> None:
    # Not closed: whatever the child still does with them must not meet another file of the same number.
    nothing = os.open(os.devnull, os.O_RDONLY)
    for each in _own:
        if each.fileno() >= 0:
            os.dup2(nothing, each.fileno(), inheritable=False)
    os.close(nothing)
    _own.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


# ---- folders ----


def _folders() -> list[Path]:
    """Where a server may be, the best place first."""
    uid = os.geteuid()
    bases = [Path(f"/run/user/{uid}")]
    named = Path(os.path.realpath(os.environ.get("XDG_RUNTIME_DIR", "/")))
    if any(Path(os.path.realpath(hidden)) in named.parents for hidden in _HIDDEN):
        bases.insert(0, named)
    inside = [base / "fanfold" for base in bases if _is_own_directory(base)]
    folders = [*inside, Path(f"/tmp/fanfold-{uid}")]  # entered only when nobody else can
    return [each for each in dict.fromkeys(folders) if len(os.fsencode(each)) + 1 + _LONGEST_NAME <= MAX_ADDRESS_BYTES]


def _own_folder(workspace: str) -> Path:
    """The folder for new sockets, made if need be.

    Raises:
        ControlError: somebody else could enter it, or it cannot be made.
    """
    fault = f"the tools of a session in {workspace} could reach the socket themselves"
    for folder in _folders():
        if Path(workspace) in Path(os.path.realpath(folder)).parents:
            continue
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            fault = f"{folder}: {error.strerror}"
            continue
        problem = _fault_of(folder)
        if problem is None:
            return folder
        fault = problem
    raise _unavailable(fault)


def _fault_of(folder: Path) -> str | None:
    """Why sockets in `folder` cannot be trusted."""
    try:
        found = os.lstat(folder)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is {'a symbolic link' if stat.S_ISLNK(found.st_mode) else 'no directory'}"
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to another user"
    if found.st_mode & 0o077:
        return f"{folder} can be entered by other users; change that with: chmod 700 {folder}"
    return None


def _is_own_directory(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


# ---- names ----


def _key(workspace: str | Path) -> str:
    return digest(os.fsencode(os.path.realpath(workspace)))[:_KEY_CHARS]


def _in(folder: Path, key: str | None, suffix: str = _SUFFIX) -> list[tuple[Path, int]]:
    """The sockets of ours in `folder`, of that workspace or of all, each with the process that its name says."""
    found: list[tuple[Path, int]] = []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    for name in names:
        parts = name.removesuffix(suffix).split(".")
        if name.endswith(suffix) and len(parts) == 3 and key in (None, parts[0]) and parts[1].isdecimal():
            path = folder / name
            if _is_own_socket(path):
                found.append((path, int(parts[1])))
    return found


def _is_own_socket(path: Path) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def _bound(listener: socket.socket, folder: Path, key: str) -> Path:
    """Bind `listener` in `folder` and have it take connections, then give it its name: one that is seen is served."""
    while True:
        path = folder / f"{key}.{os.getpid()}.{next(_numbers)}{_SUFFIX}"
        if os.path.lexists(path) and _takes_connections(path):
            continue  # of a process that has the same number in a container of its own
        unfinished = path.with_name(path.name + _UNFINISHED)
        remove(unfinished)
        listener.bind(os.fspath(unfinished))
        try:
            os.chmod(unfinished, 0o600)
            listener.listen(BACKLOG)
            os.rename(unfinished, path)
        except BaseException:
            remove(unfinished)
            raise
        return path


def _remove_dead(folder: Path) -> None:
    for path, process in [*_in(folder, None), *_in(folder, None, _SUFFIX + _UNFINISHED)]:
        if not _is_alive(process) and not _takes_connections(path):
            remove(path)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _takes_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


def _unavailable(why: str) -> ControlError:
    return ControlError("CONTROL_UNAVAILABLE", f"this session cannot be reached from another process: {why}")
