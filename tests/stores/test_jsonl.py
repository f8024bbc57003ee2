"""The log on disk: what it reads, what it repairs, what it refuses, what it leaves alone."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from fanfold.contracts.facts import NewFact, Note, RecordedCall, ToolTurn
from fanfold.errors import CorruptLogError, LogWriteError, UsageError
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.testing.conformance import append_to, read_all, said

from .logs import facts_in, lines_of, run, write_log


def test_a_fact_is_one_line_with_its_fields_in_the_order_of_the_seeds(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = JsonlFactLog(tmp_path / "log")
        await append_to(log, "t", [said("m-0", "hi"), NewFact("n", "m-0", Note("note.x", {"a": 1}))])
        await log.close()

    run(scenario())
    lines = (tmp_path / "log" / "t.jsonl").read_text().splitlines()
    assert lines == [
        '{"seq":1,"type":"user.message","key":"m-0","cause":null,"payload":{"text":"hi"}}',
        '{"seq":2,"type":"note.x","key":"n","cause":"m-0","payload":{"a":1}}',
    ]


def test_a_torn_tail_of_any_length_is_set_aside_and_the_log_goes_on(tmp_path: Path) -> None:
    good, last = lines_of(2), lines_of(1, first=3)[0]

    async def scenario(directory: Path, cut: int) -> None:
        heard: list[tuple[str, Path, int]] = []
        log = JsonlFactLog(directory, lambda *heard_of: heard.append(heard_of))
        thread = await log.hold("t")
        assert thread.last_seq == 2
        assert heard == [("t", directory / "t.jsonl.torn-1", cut)]
        assert heard[0][1].read_bytes() == last[:cut]
        await thread.append([said("key-3")])
        await thread.release()
        await log.close()
        assert (directory / "t.jsonl").read_bytes() == b"".join([*good, last])

    for cut in range(1, len(last)):
        write_log(tmp_path / str(cut), [*good, last[:cut]])
        run(scenario(tmp_path / str(cut), cut))


def test_a_last_line_of_garbage_is_torn_even_with_its_newline(tmp_path: Path) -> None:
    path = write_log(tmp_path, [*lines_of(1), b"\0\0\0\n"])
    assert len(run(facts_in(tmp_path))) == 1
    assert (tmp_path / "t.jsonl.torn-1").read_bytes() == b"\0\0\0\n"
    assert path.read_bytes() == lines_of(1)[0]


def test_a_second_torn_tail_does_not_overwrite_the_first(tmp_path: Path) -> None:
    path = write_log(tmp_path, [b"one"])
    run(facts_in(tmp_path))
    path.write_bytes(b"two")
    run(facts_in(tmp_path))
    assert [(tmp_path / f"t.jsonl.torn-{n}").read_bytes() for n in (1, 2)] == [b"one", b"two"]


_UNKNOWN = b'{"seq":2,"type":"from.the.future","key":"k","cause":null,"payload":{}}\n'
_EXTRA_FIELD = b'{"seq":2,"type":"user.message","key":"k","cause":null,"payload":{"text":""},"at":1}\n'


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        ([lines_of(1)[0], b"{garbage\n", *lines_of(1, first=2)], 2, "bad record"),
        ([lines_of(1)[0], b"\n", *lines_of(1, first=2)], 2, "bad record"),
        ([lines_of(1)[0], *lines_of(1, first=3)], 2, "gap in seq: expected 2, found 3"),
        (lines_of(1, first=2), 1, "gap in seq: expected 1, found 2"),
        ([lines_of(1)[0], lines_of(1)[0]], 2, "gap in seq"),
        ([lines_of(1)[0], lines_of(1)[0].replace(b'"seq":1', b'"seq":2')], 2, "was used before by fact 1"),
        ([lines_of(1)[0], _UNKNOWN], 2, "unknown fact kind 'from.the.future'"),
        ([lines_of(1)[0], _EXTRA_FIELD], 2, "bad record"),
    ],
    ids=["garbage", "blank", "gap", "late start", "seq twice", "key twice", "unknown kind", "extra field"],
)
def test_a_log_that_cannot_be_trusted_is_refused_by_line_and_left_alone(
    tmp_path: Path, lines: list[bytes], line: int, reason: str
) -> None:
    path = write_log(tmp_path, lines)
    with pytest.raises(CorruptLogError, match=reason) as caught:
        run(facts_in(tmp_path))
    assert (caught.value.line, caught.value.thread) == (line, "t")
    assert path.read_bytes() == b"".join(lines)
    assert [each.name for each in tmp_path.iterdir()] == ["t.jsonl"]


def test_a_replayed_append_leaves_the_bytes_alone_even_if_they_were_written_by_hand(tmp_path: Path) -> None:
    line = b'{ "seq": 1, "type": "user.message", "key": "key-1", "cause": "x", "payload": {"text": "hello"} }\n'
    path = write_log(tmp_path, [line])

    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        stored = await append_to(log, "t", [said("key-1")])
        assert (stored[0].seq, stored[0].cause) == (1, "x")
        await log.close()

    run(scenario())
    assert path.read_bytes() == line


def test_a_fact_that_could_not_be_read_back_is_refused_before_it_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        await append_to(log, "t", [said("key-1")])
        for payload in (
            Note("no.note", {}),
            ToolTurn(call=RecordedCall(id="c", name="f", args=json.loads("[1]"))),
        ):
            with pytest.raises(UsageError, match="fact 'odd'"):
                await append_to(log, "t", [NewFact("odd", None, payload)])
        await log.close()

    run(scenario())
    assert (tmp_path / "t.jsonl").read_bytes() == lines_of(1)[0]


def test_holding_a_thread_without_appending_leaves_no_file(tmp_path: Path) -> None:
    assert run(facts_in(tmp_path / "log")) == []
    assert list((tmp_path / "log").iterdir()) == []


@pytest.mark.parametrize("thread", ["", "..", "\ud800"])
def test_a_bad_id_creates_no_directory(tmp_path: Path, thread: str) -> None:
    with pytest.raises(UsageError):
        run(facts_in(tmp_path / "log", thread))
    assert list(tmp_path.iterdir()) == []


def test_a_symlink_is_not_followed_out_of_the_directory(tmp_path: Path) -> None:
    outside = write_log(tmp_path / "outside", lines_of(2))
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "t.jsonl").symlink_to(outside)
    with pytest.raises(LogWriteError, match="symbolic link"):
        run(facts_in(tmp_path / "log"))
    assert outside.read_bytes() == b"".join(lines_of(2))


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.jsonl")
    with pytest.raises(LogWriteError, match="not a regular file"):
        run(facts_in(tmp_path))


def test_closing_leaves_nothing_but_the_threads(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        held = [await log.hold(name) for name in ("a", "b")]
        await asyncio.gather(*[thread.append([said("key-1")]) for thread in held])
        assert [path.suffix for path in (tmp_path / "commits").iterdir()] == [".redo"]
        for thread in held:
            await thread.release()
        await log.close()

    run(scenario())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.jsonl", "b.jsonl", "commits"]


def test_a_replaced_file_is_read_anew_though_it_has_the_same_size(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        await append_to(log, "t", [said("key-1")])
        path = tmp_path / "t.jsonl"
        other = path.read_bytes().replace(b"key-1", b"key-9")
        path.rename(tmp_path / "old")
        path.write_bytes(other)
        assert [fact.seq for fact in await append_to(log, "t", [said("key-1")])] == [2]
        assert [fact.key for fact in await read_all(log, "t")] == ["key-9", "key-1"]
        await log.close()

    run(scenario())


def test_a_file_that_was_cut_and_grew_beyond_its_old_size_is_read_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        await append_to(log, "t", [said(f"key-{n}") for n in (1, 2, 3)])
        path = tmp_path / "t.jsonl"
        with path.open("r+b") as file:
            file.truncate(len(lines_of(1)[0]))
        with path.open("ab") as file:
            file.write(lines_of(1, first=2)[0].replace(b"hello", b"hello, which is longer than it was" * 10))
        thread = await log.hold("t")
        assert [fact.seq for fact in await thread.read()] == [1, 2]
        await thread.release()
        await log.close()

    run(scenario())


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux to count what is read")
def test_neither_an_append_nor_holding_again_reads_a_long_log(tmp_path: Path) -> None:
    count = 100_000
    write_log(tmp_path, lines_of(count))

    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        thread = await log.hold("t")
        before = _bytes_read()
        await thread.append([said("new-1")])
        await thread.release()
        again = await log.hold("t")
        await again.append([said("new-2")])
        await again.release()
        with (tmp_path / "t.jsonl").open("ab") as file:  # another process, between two holds
            file.write(lines_of(1, first=count + 3)[0])
        grown = await log.hold("t")
        assert grown.last_seq == count + 3
        assert [fact.key for fact in await grown.append([said("new-3")])] == ["new-3"]
        assert _bytes_read() - before < 4096
        assert [fact.seq for fact in await grown.read(count)] == [count + n for n in (1, 2, 3, 4)]
        await grown.release()
        await log.close()

    run(scenario())
