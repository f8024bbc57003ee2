"""`check` tells everything and changes nothing; `repair` moves the bad part aside."""

from pathlib import Path

import pytest

from fanfold.errors import SessionBusyError, UsageError
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.stores.repair import check, repair
from fanfold.testing.conformance import append_to, said

from .logs import facts_in, lines_of, run, write_log

_BAD = b"{garbage\n"


def test_a_good_log_has_no_problems_and_is_not_changed_by_a_repair(tmp_path: Path) -> None:
    path = write_log(tmp_path, lines_of(3))
    report = check(path)
    assert (report.thread, report.good_facts, report.problems) == ("t", 3, ())
    done = repair(path)
    assert (done.kept_facts, done.moved_lines, done.moved_bytes, done.moved_to) == (3, 0, 0, None)
    assert path.read_bytes() == b"".join(lines_of(3))
    assert [each.name for each in tmp_path.iterdir()] == ["t.jsonl"]


def test_check_lists_every_problem_with_its_line(tmp_path: Path) -> None:
    unknown = lines_of(1, first=4)[0].replace(b"user.message", b"strange")
    path = write_log(tmp_path, [*lines_of(2), _BAD, unknown, *lines_of(1, first=5), *lines_of(2, first=9), b'{"seq":'])
    before = path.read_bytes()
    report = check(path)
    assert report.good_facts == 2
    assert not report.is_self_healing
    assert [(problem.line, problem.reason.split(":")[0]) for problem in report.problems] == [
        (3, "bad record"),
        (4, "bad record"),
        (6, "gap in seq"),
        (8, "torn tail"),
    ]
    assert "unknown fact kind 'strange'" in report.problems[1].reason
    assert report.to_dict()["problems"][0]["line"] == 3
    assert path.read_bytes() == before


def test_a_lone_torn_tail_heals_by_itself(tmp_path: Path) -> None:
    assert check(write_log(tmp_path, [*lines_of(2), b'{"seq":'])).is_self_healing


def test_repair_keeps_the_good_beginning_and_the_bad_rest_in_a_file_of_its_own(tmp_path: Path) -> None:
    rest = [_BAD, *lines_of(2, first=4)]
    path = write_log(tmp_path, [*lines_of(2), *rest])
    done = repair(path)
    assert (done.kept_facts, done.moved_lines, done.moved_bytes) == (2, 3, len(b"".join(rest)))
    assert done.moved_to == str(tmp_path / "t.jsonl.torn-1")
    assert (tmp_path / "t.jsonl.torn-1").read_bytes() == b"".join(rest)
    assert len(run(facts_in(tmp_path))) == 2
    assert check(path).problems == ()


def test_repair_of_a_log_without_a_good_fact_keeps_all_of_it_aside(tmp_path: Path) -> None:
    path = write_log(tmp_path, [_BAD, *lines_of(1)])
    assert repair(path).kept_facts == 0
    assert (tmp_path / "t.jsonl.torn-1").read_bytes() == _BAD + lines_of(1)[0]


def test_repair_refuses_a_log_that_somebody_works_with(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        await append_to(log, "t", [said("a")])
        thread = await log.hold("t")
        assert check(tmp_path / "t.jsonl").good_facts == 1
        with pytest.raises(SessionBusyError):
            repair(tmp_path / "t.jsonl")
        await thread.release()
        await log.close()

    run(scenario())


@pytest.mark.parametrize("tool", [check, repair])
def test_a_missing_log_is_named_and_not_created(tmp_path: Path, tool: object) -> None:
    assert callable(tool)
    with pytest.raises(UsageError, match="no fact log at"):
        tool(tmp_path / "t.jsonl")
    assert list(tmp_path.iterdir()) == []
