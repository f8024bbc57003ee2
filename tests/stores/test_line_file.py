"""One opener at a time, and always of the file that has the name."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.errors import LogWriteError
from fanfold.stores.line_file import LineFile


def test_whoever_has_the_lock_has_the_file_of_that_name_even_while_others_remove_it(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    wrong: list[int] = []
    inside = threading.Semaphore(1)

    def open_and_close() -> None:
        for turn in range(1500):
            file = LineFile.try_open(path)
            if file is None:
                continue
            if not inside.acquire(blocking=False) or not path.exists() or path.stat().st_ino != file.inode:
                wrong.append(turn)
            inside.release()
            file.close()  # nothing was written, so this removes the file

    threads = [threading.Thread(target=open_and_close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not path.exists()


def test_an_empty_file_leaves_the_one_that_took_its_name(tmp_path: Path) -> None:
    path = tmp_path / "t"
    file, other = LineFile.try_open(path), tmp_path / "other"
    assert file is not None
    other.write_bytes(b"somebody else's\n")
    other.replace(path)
    file.close()
    assert path.read_bytes() == b"somebody else's\n"


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: path.unlink(), "it was removed while it was in use"),
        (lambda path: path.rename(path.with_name("moved")), "it was removed while it was in use"),
        (lambda path: path.with_name("other").replace(path), "it was replaced by another file"),
        (lambda path: path.write_bytes(b""), "somebody else changed it"),
        (lambda path: path.write_bytes(b"one\ntwo\nthree\n"), "somebody else changed it"),
    ],
)
def test_bytes_that_no_reader_would_find_are_not_kept(
    tmp_path: Path, harm: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / "t"
    path.with_name("other").write_bytes(b"one\ntwo\n")
    file = LineFile.try_open(path)
    assert file is not None
    file.write(b"one\n")
    file.keep(4)
    file.write(b"two\n")
    harm(path)
    left = path.read_bytes() if path.exists() else None
    with pytest.raises(LogWriteError, match=reason):
        file.keep(4)
    with pytest.raises(LogWriteError, match=reason):
        file.write(b"more\n")
    assert file.size == 4
    file.close()
    assert (path.read_bytes() if path.exists() else None) == (left or None)


def test_what_is_not_kept_can_be_taken_back(tmp_path: Path) -> None:
    file = LineFile.try_open(tmp_path / "t")
    assert file is not None
    file.write(b"one\n")
    file.keep(4)
    file.write(b"two\n")
    file.take_back()
    file.write(b"three\n")
    file.keep(6)
    assert file.read(0, file.size) == b"one\nthree\n"
    file.close()


def test_taking_back_adds_nothing_to_a_file_that_somebody_cut(tmp_path: Path) -> None:
    file = LineFile.try_open(tmp_path / "t")
    assert file is not None
    file.write(b"one\n")
    file.keep(4)
    (tmp_path / "t").write_bytes(b"")
    file.write(b"2\n")
    file.take_back()
    assert (tmp_path / "t").read_bytes() == b"2\n"
    file.close()


@pytest.mark.parametrize("start", [0, 3, 4, 10])
def test_a_cut_moves_every_byte_from_its_start_on(tmp_path: Path, start: int) -> None:
    (tmp_path / "t").write_bytes(b"one\nthree\n")
    file = LineFile.try_open(tmp_path / "t")
    assert file is not None
    kept_in = file.cut(start)
    file.close()
    rest = (tmp_path / "t").read_bytes() if start else b""
    assert rest + kept_in.read_bytes() == b"one\nthree\n"
    assert len(rest) == start


def test_what_is_set_aside_is_kept_whole_and_the_name_has_another_file(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"one\nthree\n")
    file = LineFile.try_open(tmp_path / "t")
    assert file is not None
    before = file.inode
    for number, content in enumerate([b"one\nthree\n", b"two\n"], 1):
        kept_in = file.set_aside()
        assert kept_in == tmp_path / f"t.aside-{number}"
        assert kept_in.read_bytes() == content
        assert (tmp_path / "t").read_bytes() == b""
        assert LineFile.try_open(tmp_path / "t") is None  # it is still ours
        file.write(b"two\n")
        file.keep(4)
    assert file.inode != before
    file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t", "t.aside-1", "t.aside-2"]
    assert (tmp_path / "t").read_bytes() == b"two\n"


def test_nobody_gets_the_file_while_its_holder_sets_it_aside(tmp_path: Path) -> None:
    path = tmp_path / "t"
    (tmp_path / "t.new").write_bytes(b"left by one who died here")
    file = LineFile.try_open(path)
    assert file is not None
    got: list[int] = []
    is_over = threading.Event()

    def rival() -> None:
        while not is_over.is_set():
            other = LineFile.try_open(path)
            if other is not None:
                got.append(other.inode)
                other.close()

    threads = [threading.Thread(target=rival) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(60):
        file.write(b"%d\n" % number)
        file.keep(len(b"%d\n" % number))
        assert file.set_aside().read_bytes() == b"%d\n" % number
    is_over.set()
    for thread in threads:
        thread.join()
    assert got == []
    file.close()
    assert len(list(tmp_path.iterdir())) == 60
