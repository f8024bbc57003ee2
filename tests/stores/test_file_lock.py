"""A lock lasts as long as its holder holds it, whoever else has got a copy of the descriptor."""

import os
import sys
from pathlib import Path

import pytest

from fanfold.stores.file_lock import try_lock, unlock
from fanfold.stores.line_file import LineFile

from .logs import facts_in, run, run_child, start_child

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


def test_an_unlocked_file_is_free_while_a_copy_of_its_descriptor_lives(tmp_path: Path) -> None:
    first, second = [os.open(tmp_path / "t", os.O_CREAT | os.O_RDWR) for _ in range(2)]
    assert try_lock(first)
    copy = os.dup(first)
    assert not try_lock(second)
    unlock(first)
    os.close(first)
    assert try_lock(second)
    unlock(second)
    os.close(second)
    os.close(copy)


_PREAMBLE = """
import asyncio, os, sys
from pathlib import Path
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.testing.conformance import said

async def main():
    log = JsonlFactLog(Path(sys.argv[1]))
    thread = await log.hold("t")
    await thread.append([said("a")])
"""

_FORK_AND_GO_ON = (
    _PREAMBLE
    + """
    end, my_end = os.pipe()
    if os.fork() == 0:
        os.close(my_end)
        os.read(end, 1)
        os._exit(0)
    await thread.release()
    again = await log.hold("t")
    await again.append([said("b")])
    await again.release()
    await log.close()
    os.close(my_end)
    os.wait()

asyncio.run(main())
"""
)


def test_a_child_of_a_fork_does_not_keep_its_parent_from_holding_the_thread_again(tmp_path: Path) -> None:
    run_child(_FORK_AND_GO_ON, tmp_path)
    assert [fact.key for fact in run(facts_in(tmp_path))] == ["a", "b"]


_FORK_AND_DIE = (
    _PREAMBLE
    + """
    if os.fork() == 0:
        sys.stdin.read()
    os._exit(0)

asyncio.run(main())
"""
)


def test_a_child_of_a_fork_does_not_inherit_the_thread_of_a_dead_parent(tmp_path: Path) -> None:
    parent = start_child(_FORK_AND_DIE, tmp_path)
    parent.wait(timeout=25)
    assert [fact.key for fact in run(facts_in(tmp_path))] == ["a"]  # its child still waits for the end of its input
    parent.communicate()


_USE_AN_INHERITED_LOG = (
    _PREAMBLE
    + """
    if os.fork() == 0:
        try:
            await thread.append([said("b")])
        except BaseException:
            os._exit(0)
        os._exit(1)
    _, status = os.wait()
    assert status == 0, status
    await thread.append([said("c")])
    await thread.release()
    await log.close()

asyncio.run(main())
"""
)


def test_a_child_of_a_fork_cannot_write_to_the_thread_of_its_parent(tmp_path: Path) -> None:
    run_child(_USE_AN_INHERITED_LOG, tmp_path)
    assert [fact.key for fact in run(facts_in(tmp_path))] == ["a", "c"]


def test_a_child_of_a_fork_leaves_the_empty_file_of_its_parent_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    file = LineFile.try_open(path)
    assert file is not None
    file.write(b"a line\n")
    file.keep(7)
    if (child := os.fork()) == 0:
        file.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert path.read_bytes() == b"a line\n"
    file.close()
