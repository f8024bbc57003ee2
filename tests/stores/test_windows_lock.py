"""A system without POSIX: everything can be imported there, and a run still has one holder (spec-workflow D14).

The system is played by an interpreter that says it is Windows, has no POSIX modules, and locks by `msvcrt`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, concurrent.futures, importlib.metadata, os, shutil, signal, ssl, subprocess, sys, tempfile, types
from pathlib import Path

import fanfold  # what comes from elsewhere has to know the true system

ours = [name for name in sys.modules if name.partition(".")[0] == "fanfold"]
for name in ours:
    del sys.modules[name]

sys.platform = "win32"
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None

locked = {}  # (device, inode, place) -> descriptor


def locking(fd, mode, count):
    stat = os.fstat(fd)
    key = (stat.st_dev, stat.st_ino, os.lseek(fd, 0, os.SEEK_CUR))
    if mode == msvcrt.LK_UNLCK:
        if locked.pop(key, None) != fd:
            raise PermissionError("it is not locked by this opening")
    elif locked.setdefault(key, fd) != fd:
        raise PermissionError("another opening has it")


msvcrt = sys.modules["msvcrt"] = types.ModuleType("msvcrt")
msvcrt.LK_UNLCK, msvcrt.LK_NBLCK, msvcrt.locking = 0, 2, locking

import fanfold
import fanfold.workflow.runtime
from fanfold.errors import AlreadyActiveError
from fanfold.stores.run_files import open_run_files

RUN = "wf_demo_0123456789abcdef"


async def main(place):
    held = await open_run_files(place).create(RUN)
    await held.append([b"one"])
    assert locked, "it was locked by other means"
    try:
        await open_run_files(place).hold(RUN)
    except AlreadyActiveError:
        await held.release()
    again = await open_run_files(place).hold(RUN)
    assert (await again.read_journal()).lines == [b"one"]
    await again.release()
    assert not locked


asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there it is so anyway")
def test_a_system_without_posix_has_locks_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=25, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
