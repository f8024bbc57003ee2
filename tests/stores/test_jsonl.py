"""The log on disk: what it reads, what it repairs, what it refuses, what it leaves alone."""

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fanfold.contracts.codec import encode_fact
from fanfold.contracts.facts import NewFact, Note, RecordedCall, ToolTurn
from fanfold.errors import CorruptLogError, LogWriteError, UsageError
from fanfold.protocols import HeldThread
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.testing.conformance import append_to, lineage_of, read_all, said

from .logs import facts_in, lines_of, run, write_log
from .test_run_files import at


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
        log = JsonlFactLog(directory)
        thread = await log.hold("t")
        assert thread.last_seq == 2
        assert thread.torn_tail == str(directory / "t.jsonl.torn-1")
        assert Path(thread.torn_tail).read_bytes() == last[:cut]
        await thread.append([said("key-3")])
        await thread.release()
        again = await log.hold("t")
        assert again.torn_tail is None
        await again.release()
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
        ([lines_of(1)[0], _UNKNOWN.replace(b'"k"', b'""')], 2, "type and key are required"),
        ([lines_of(1)[0], _UNKNOWN.replace(b"from.the.future", b"")], 2, "type and key are required"),
    ],
    ids=[
        *("garbage", "blank", "gap", "late start", "seq twice", "key twice", "unknown kind", "extra field"),
        *("empty key", "empty type"),
    ],
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


def test_what_is_refused_leaves_no_byte_in_the_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        await append_to(log, "t", [said("key-1")])
        with pytest.raises(UsageError, match="fact 'odd'"):
            await append_to(log, "t", [said("good"), NewFact("odd", None, Note("no.note", {}))])
        await log.close()

    run(scenario())
    assert (tmp_path / "t.jsonl").read_bytes() == lines_of(1)[0]


def test_a_tuple_is_written_as_the_list_that_it_is_read_as(tmp_path: Path) -> None:
    args = {"a": (1, [2, (3,)]), "b": {"c": ()}}

    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        fact = NewFact("k", None, ToolTurn(call=RecordedCall(id="c", name="f", args=args)))
        stored = await append_to(log, "t", [fact])
        assert [each.seq for each in await append_to(log, "t", [fact])] == [stored[0].seq]
        await log.close()

    run(scenario())
    payload = run(facts_in(tmp_path))[0].payload
    assert isinstance(payload, ToolTurn)
    assert payload.call.args == {"a": [1, [2, [3]]], "b": {"c": []}}


def _remove(path: Path) -> None:
    path.unlink()


def _remove_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def _move_away(path: Path) -> None:
    path.rename(path.with_name("moved"))


def _put_another_there(path: Path) -> None:
    _replace(path, path.read_bytes().splitlines(keepends=True))


@pytest.mark.parametrize("harm", [_remove, _remove_directory, _move_away, _put_another_there])
@pytest.mark.parametrize("is_old", [False, True], ids=["new directory", "old directory"])
def test_an_append_to_a_file_that_nobody_will_find_is_not_reported_as_done(
    tmp_path: Path, harm: Callable[[Path], None], is_old: bool
) -> None:
    directory = tmp_path / "log"

    async def scenario() -> None:
        log = JsonlFactLog(directory)
        harmed, other = [await log.hold(name) for name in ("t", "u")]
        for key in "abc":
            if is_old:  # then the files of the log are not looked at one by one
                os.utime(directory, (1, 1))
            await _append_to_all([harmed, other], key)
        harm(directory / "t.jsonl")
        results = await _append_to_all([harmed, other], "d")
        assert isinstance(results[0], LogWriteError)
        assert isinstance(results[1], LogWriteError) == (harm is _remove_directory)
        for key in "ad":
            with pytest.raises(LogWriteError, match="while it was in use"):
                await harmed.append([said(key)])
        assert harmed.last_seq == 3
        for thread in (harmed, other):
            await thread.release()
        again = await log.hold("t")
        assert [fact.seq for fact in await again.append([said("d")])] == [4 if harm is _put_another_there else 1]
        await again.release()
        await log.close()

    run(scenario())


def test_a_cancelled_append_to_a_removed_file_is_still_a_cancelled_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        thread = await log.hold("t")
        await thread.append([said("a")])
        _remove(tmp_path / "t.jsonl")
        append = asyncio.create_task(_append(thread, "b"))
        await asyncio.sleep(0)
        append.cancel()
        await asyncio.wait([append])
        assert append.cancelled()
        assert thread.last_seq == 1
        await thread.release()
        await log.close()

    run(scenario())


async def _append(thread: HeldThread, key: str) -> None:
    await thread.append([said(key)])


def test_commits_go_on_after_their_journal_was_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        held = [await log.hold(name) for name in ("t", "u")]
        for key in "abc":
            assert not any(isinstance(each, Exception) for each in await _append_to_all(held, key))
            shutil.rmtree(tmp_path / "commits", ignore_errors=True)  # the batch after a removal makes none
        for thread in held:
            await thread.release()
        await log.close()
        for name in ("t", "u"):
            assert [fact.key for fact in await facts_in(tmp_path, name)] == ["a", "b", "c"]

    run(scenario())


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="needs symbolic links")
@pytest.mark.parametrize("link", [".a3s", ".a3s/effect-log", ".a3s/effect-log/commits"])
def test_no_directory_of_a_log_may_lead_out_of_the_workspace(tmp_path: Path, link: str) -> None:
    outside, path = tmp_path / "outside", tmp_path / "workspace" / link
    outside.mkdir()
    path.parent.mkdir(parents=True)
    path.symlink_to(outside, target_is_directory=True)

    async def scenario() -> None:
        log = JsonlFactLog(tmp_path / "workspace" / ".a3s" / "effect-log")
        with pytest.raises(UsageError, match=f"{link} is a symbolic link"):
            await log.hold("t")
        await log.close()

    run(scenario())
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("link", [".a3s", ".a3s/effect-log"])
def test_a_directory_that_becomes_a_link_between_two_operations_is_refused(tmp_path: Path, link: str) -> None:
    async def scenario() -> None:
        log = JsonlFactLog(tmp_path / ".a3s" / "effect-log")
        await append_to(log, "t", [said("a")])
        (tmp_path / link).rename(tmp_path / "outside")
        (tmp_path / link).symlink_to(tmp_path / "outside", target_is_directory=True)
        with pytest.raises(UsageError, match="is a symbolic link"):
            await log.hold("t")
        await log.close()

    run(scenario())


def test_commits_do_not_follow_a_link_that_came_after_the_recovery(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    async def scenario() -> None:
        log = JsonlFactLog(tmp_path / "log")
        held = [await log.hold(name) for name in ("t", "u")]
        (tmp_path / "log" / "commits").symlink_to(outside, target_is_directory=True)
        for thread, result in zip(held, await _append_to_all(held, "a"), strict=True):
            assert isinstance(result, UsageError)
            assert thread.last_seq == 0
            await thread.release()
        await log.close()

    run(scenario())
    assert list(outside.iterdir()) == []


async def _append_to_all(held: Sequence[HeldThread], key: str) -> Sequence[object]:
    return await asyncio.gather(*[thread.append([said(key)]) for thread in held], return_exceptions=True)


def test_a_workspace_that_is_itself_reached_through_a_link_is_as_good_as_any(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)

    async def scenario() -> None:
        log = JsonlFactLog(tmp_path / "link" / ".a3s" / "effect-log")
        await append_to(log, "t", [said("a")])
        await log.close()

    run(scenario())
    assert (tmp_path / "real" / ".a3s" / "effect-log" / "t.jsonl").exists()


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


def _cut_short(path: Path) -> None:
    os.truncate(path, len(lines_of(1)[0]))


def _replace(path: Path, lines: list[bytes]) -> None:
    other = path.with_name("other")
    other.write_bytes(b"".join(lines))
    other.replace(path)


def _other_past(count: int) -> list[bytes]:
    return [line.replace(b"hello", b"other") for line in lines_of(count)]


_LONG = 12
"""Facts that are more bytes than what is remembered of them."""


@pytest.mark.parametrize(
    "harm",
    [
        _cut_short,
        lambda path: path.write_bytes(b"".join(_other_past(_LONG))),
        lambda path: path.write_bytes(b"".join([*lines_of(6), *_other_past(7)[6:], *lines_of(_LONG - 7, first=8)])),
        lambda path: path.write_bytes(b"".join(_other_past(20))),
        lambda path: path.write_bytes(b"".join([_other_past(1)[0], *lines_of(19, first=2)])),
        lambda path: path.write_bytes(b"".join([*lines_of(_LONG - 1), *_other_past(20)[_LONG - 1 :]])),
        lambda path: _replace(path, _other_past(_LONG)),
        lambda path: _replace(path, _other_past(20)),
        lambda path: _replace(path, lines_of(_LONG)),
        lambda path: shutil.rmtree(path.parent),
    ],
    ids=[
        "cut",
        "rewritten in place",
        "another middle",
        "longer and another past",
        "longer and another beginning",
        "longer and another end",
        "replaced",
        "replaced by a longer one",
        "replaced by its copy",
        "removed with its directory",
    ],
)
def test_a_log_that_did_not_only_grow_has_another_lineage(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    path = tmp_path / "log" / "t.jsonl"

    async def scenario() -> None:
        log = JsonlFactLog(path.parent)
        await append_to(log, "t", [said(f"key-{n}") for n in range(1, _LONG + 1)])
        os.utime(path, (1, 1))  # or the harm may come in the same tick of the file system's clock
        lineage = await lineage_of(log, "t")
        harm(path)
        found = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        thread = await log.hold("t")
        assert thread.lineage is not lineage
        assert [encode_fact(fact) for fact in await thread.read()] == found
        assert [fact.seq for fact in await thread.append([said("new")])] == [len(found) + 1]
        await thread.release()
        await log.close()

    run(scenario())


def test_a_log_that_another_process_appended_to_keeps_its_lineage(tmp_path: Path) -> None:
    path = write_log(tmp_path, lines_of(3))

    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        lineage = await lineage_of(log, "t")
        with path.open("ab") as file:
            file.write(b"".join(lines_of(2, first=4)))
        thread = await log.hold("t")
        assert thread.lineage is lineage
        assert [fact.seq for fact in await thread.read(3)] == [4, 5]
        await thread.release()
        await log.close()

    run(scenario())


def test_a_log_that_was_cut_while_it_was_held_has_another_lineage(tmp_path: Path) -> None:
    path = write_log(tmp_path, lines_of(3))

    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        thread = await log.hold("t")
        _cut_short(path)
        await thread.release()
        assert await lineage_of(log, "t") is not thread.lineage
        assert len(await read_all(log, "t")) == 1
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


def test_a_file_that_vanishes_while_logs_are_listed_hides_none_of_them(tmp_path: Path) -> None:
    async def threads() -> list[str]:
        log = JsonlFactLog(tmp_path)
        try:
            return list(await log.threads())
        finally:
            await log.close()

    write_log(tmp_path, lines_of(1), "kept")
    gone = write_log(tmp_path, lines_of(1), "gone")
    with at("call", "_status_of", gone.unlink):
        assert run(threads()) == ["kept"]
