"""Which recorded answer a call of a resumed script gets: each one once, and none is paid for twice."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.contracts.run_journal import Header, Moved, Result, ResultStatus, RunRecord, Started
from fanfold.contracts.workflow_runs import WorkflowMeta
from fanfold.errors import InternalError
from fanfold.kernel.call_identity import CallMeaning, call_identity
from fanfold.kernel.run_entries import Claim
from fanfold.kernel.run_journal import encode_line, read_run_journal
from fanfold.kernel.run_view import RunJournalView

RUN = "wf_audit_0123456789abcdef"
META = WorkflowMeta(name="audit", description="d")
Calls = Mapping[str, str]
"""Prompts by place."""


def identity(prompt: str) -> str:
    return call_identity(CallMeaning(prompt=prompt, agent="general"))[0]


class Story:
    """A run over its attempts: what an engine would write, one attempt after the other."""

    def __init__(self) -> None:
        self.records: list[RunRecord] = []
        self.attempt = 0
        self.view = RunJournalView(RUN)

    def read(self) -> RunJournalView:
        return read_run_journal([encode_line(record) for record in self.records], RUN, strict=True)

    def resume(self) -> None:
        self.view = self.read()
        self.attempt += 1
        self.write(
            Header(run_id=RUN, workflow="audit", meta=META, args_sha="0", attempt=self.attempt, runtime="1", at_ms=1)
        )

    def write(self, record: RunRecord) -> None:
        self.records.append(record)
        self.view.take(record)

    def call(
        self, path: str, prompt: str, status: ResultStatus | None = "ok", *, label: str = "", phase: str | None = None
    ) -> Claim:
        """One call, which ends with `status` if it has to be run (None: it is cut off)."""
        claim = self.view.claim(identity(prompt), path)
        if claim.is_answered:
            if claim.moved is not None:
                self.write(claim.moved)
            return claim
        seq = self.view.last_seq + 1
        found, written = call_identity(CallMeaning(prompt=prompt, agent="general"))
        fields: dict[str, Any] = {"seq": seq, "id": found, "path": path, "attempt": self.attempt}
        self.write(Started(key=claim.key, call=msgspec.Raw(written), label=label, phase=phase, **fields))
        if status is not None:
            value = msgspec.Raw(msgspec.json.encode(f"{prompt} at {path} in attempt {self.attempt}"))
            self.write(Result(status=status, value=value, **fields))
        return claim

    def attempt_with(self, calls: Calls, order: Sequence[str] | None = None) -> dict[str, int]:
        """Run all `calls`, in the given order of places; the number of the entry that each of them has then."""
        self.resume()
        claims = {path: self.call(path, calls[path]) for path in (order or list(calls))}
        places = self.read().places()
        return {path: claim.entry.seq if claim.entry else places[path].seq for path, claim in claims.items()}

    @property
    def launched(self) -> int:
        """In the newest attempt."""
        return sum(isinstance(record, Started) and record.attempt == self.attempt for record in self.records)


def kinds(claims: Iterable[Claim]) -> list[str]:
    return [claim.kind for claim in claims]


# ---- the order of the rules ------------------------------------------------------------------------------------


def test_equal_calls_of_one_run_never_share_an_answer() -> None:
    story = Story()
    story.resume()
    assert kinds(story.call(f"#{n}", "vote") for n in range(3)) == ["new", "new", "new"]
    story.resume()
    claims = [story.call(f"#{n}", "vote") for n in range(4)]
    assert kinds(claims) == ["recorded", "recorded", "recorded", "new"]
    assert [claim.result.seq for claim in claims[:3]] == [1, 2, 3]


def test_its_own_place_comes_before_the_oldest() -> None:
    story = Story()
    story.attempt_with({"#0": "vote", "#1": "vote", "#2": "vote"})
    story.resume()
    assert [story.call(path, "vote").result.seq for path in ("#2", "#9", "#1")] == [3, 1, 2]


def test_of_several_at_one_place_the_last_one_stands_there() -> None:
    story = Story()
    story.attempt_with({"#0": "vote"})
    story.resume()
    story.view.claim(identity("vote"), "#5")  # taken by a call that leaves no trace
    assert story.call("#0", "vote").kind == "new"
    story.resume()
    assert story.call("#0", "vote").result.seq == 2
    assert story.call("#1", "vote").result.seq == 1


def test_the_oldest_is_the_one_that_was_issued_first_wherever_it_stands_now() -> None:
    story = Story()
    story.attempt_with({"#0": "a", "#1": "a"})
    story.write(Moved(seq=1, path="#9"))
    story.resume()
    assert story.call("#7", "a").result.seq == 1


def test_what_was_moved_to_a_place_stands_there_from_then_on() -> None:
    story = Story()
    story.attempt_with({"#0": "a", "#1": "a"})
    assert {path: entry.seq for path, entry in story.view.places().items()} == {"#0": 1, "#1": 2}
    story.write(Moved(seq=1, path="#1"))
    assert story.read().places()["#1"].seq == story.view.places()["#1"].seq == 1
    story.call("#1", "b")
    assert story.read().places()["#1"].seq == story.view.places()["#1"].seq == 3
    story.resume()
    assert [entry.seq for entry in story.view.unclaimed()] == [1, 2, 3]
    assert [story.call("#1", "a").result.seq, story.call("#0", "a").result.seq] == [1, 2]


@pytest.mark.parametrize("status", ["error", "cancelled", None])
def test_what_has_no_answer_runs_again_under_its_key(status: ResultStatus | None) -> None:
    story = Story()
    story.resume()
    keys = [story.call("#0", "a", status).key, story.call("#1", "a", "ok").key, story.call("#2", "a", status).key]
    assert len(set(keys)) == 3
    story.resume()
    story.call("#1", "a")
    claims = [story.call("#2", "a"), story.call("#7", "a")]
    assert kinds(claims) == ["again", "again"]
    assert [claim.key for claim in claims] == [keys[2], keys[0]], "the one at its place first, then the oldest"
    assert [claim.has_ended for claim in claims] == [status is not None] * 2
    assert [claim.moved for claim in claims] == [None, None], "only answers stand somewhere"
    story.resume()
    assert kinds(story.call(path, "a") for path in ("#1", "#2", "#7")) == ["recorded"] * 3


def test_an_answer_comes_before_what_failed_at_that_place() -> None:
    """Two of five equal voters failed: a resume costs two launches, wherever they stand."""
    story = Story()
    story.resume()
    for number in range(5):
        story.call(f"/0.{number}#0", "vote", "error" if number in (1, 3) else "ok")
    story.attempt_with({f"/0.{number}#0": "vote" for number in range(5)})
    assert story.launched == 2


@pytest.mark.parametrize("status", ["ok", "skipped"])
def test_none_is_an_answer_like_any_other(status: ResultStatus) -> None:
    story = Story()
    story.resume()
    key = story.view.claim(identity("a"), "#0").key
    story.write(Started(seq=1, id=identity("a"), path="#0", key=key, attempt=1))
    story.write(Result(seq=1, id=identity("a"), path="#0", status=status))
    story.resume()
    claim = story.call("#0", "a")
    assert claim.is_answered
    assert (claim.result.status, bytes(claim.result.value)) == (status, b"null")


def test_of_one_key_the_newest_entry_counts_whatever_came_of_it() -> None:
    story = Story()
    story.resume()
    key = story.call("#0", "a", "error").key
    story.resume()
    assert story.call("#0", "a", None).key == key
    story.resume()
    assert story.call("#0", "a", "ok").kind == "again"
    story.resume()
    claims = [story.call("#0", "a"), story.call("#1", "a")]
    assert kinds(claims) == ["recorded", "new"], "one call, however often it was tried"
    assert claims[0].result.seq == 3
    assert [entry.is_superseded for entry in story.read().entries.values()] == [True, True, False, False]


def test_what_was_run_in_this_attempt_answers_nobody_in_it() -> None:
    story = Story()
    story.resume()
    for number in range(3):
        assert story.call(f"#{number}", "a", "error" if number == 1 else "ok").kind == "new"


def test_keys_name_the_run_the_call_and_which_of_its_equals_it_is() -> None:
    view = RunJournalView(RUN)
    keys = [view.claim(identity("a"), f"#{number}").key for number in range(3)]
    assert keys == [f"{RUN}:{identity('a')[:32]}:{number}" for number in range(3)]
    assert view.next_key(identity("b")).endswith(":0")


def test_no_key_is_given_out_twice_though_entries_were_lost() -> None:
    story = Story()
    story.resume()
    keys = {story.call(f"#{number}", "a").key for number in range(4)}
    lines = [encode_line(record) for record in story.records]
    for lost in range(1, len(lines) - 1):
        view = read_run_journal([*lines[:lost], b"lost", *lines[lost + 1 :]], RUN)
        assert view.next_key(identity("a")) not in keys
    both = read_run_journal([lines[0], b"lost", b"lost", *lines[3:]], RUN)
    assert both.next_key(identity("a")) not in keys


def test_a_copy_can_be_claimed_whenever_it_comes() -> None:
    story = Story()
    story.attempt_with({"#0": "a", "#1": "a", "#2": "a"})
    view = RunJournalView(RUN)
    for record in story.records[1:]:
        assert isinstance(record, Started | Result)
        view.take(msgspec.structs.replace(record, attempt=0))
        if isinstance(record, Result):
            assert view.claim(record.id, record.path).result.seq == record.seq


# ---- answers that cannot be used -----------------------------------------------------------------------------


def test_a_rejected_answer_runs_again_under_its_key() -> None:
    story = Story()
    story.attempt_with({"#0": "a"})
    story.resume()
    claim = story.view.claim(identity("a"), "#0")
    story.view.reject(claim)
    assert story.view.rejected == 1
    again = story.call("#0", "a")
    assert (again.kind, again.key) == ("again", claim.key)
    assert story.call("#1", "a").kind == "new"
    story.resume()
    assert story.call("#0", "a").result.seq == 2


def test_a_call_whose_answer_was_rejected_goes_on_as_itself() -> None:
    story = Story()
    story.resume()
    story.call("#0", "a", "error")
    keys = {path: story.call(path, "a").key for path in ("#1", "#2")}
    story.resume()
    claims = [story.view.claim(identity("a"), path) for path in ("#1", "#8")]
    for claim in claims:
        story.view.reject(claim)
    assert story.call("#1", "a").key == keys["#1"], "its place comes first"
    assert story.call("#8", "a").key == keys["#2"], "then what was rejected last, before what failed elsewhere"


def test_a_rejected_answer_is_replaced_by_that_of_an_equal_call_where_there_is_one() -> None:
    story = Story()
    story.attempt_with({"#0": "a", "#1": "a"})
    story.resume()
    story.view.reject(story.view.claim(identity("a"), "#0"))
    assert story.call("#0", "a").result.seq == 2
    assert story.call("#1", "a").kind == "again"
    assert story.call("#2", "a").kind == "new"


def test_a_rejected_answer_is_never_given_out_again() -> None:
    story = Story()
    story.attempt_with({f"#{number}": "a" for number in range(4)})
    story.resume()
    seen: Counter[int] = Counter()
    for number in (3, 0, 2, 1):
        while (claim := story.view.claim(identity("a"), f"#{number}")).is_answered:
            seen[claim.result.seq] += 1
            story.view.reject(claim)
    assert seen == Counter([1, 2, 3, 4])
    assert story.view.rejected == 4
    assert story.view.unclaimed() == []


def test_only_an_answer_can_be_rejected() -> None:
    story = Story()
    story.resume()
    claims = [story.call("#0", "a", "error"), story.call("#1", "b")]
    story.resume()
    for claim in (*claims, story.call("#0", "a")):
        with pytest.raises(InternalError):
            story.view.reject(claim)
    with pytest.raises(ValueError, match="nothing is recorded"):
        _ = story.view.claim(identity("c"), "#2").result


# ---- what is left over ---------------------------------------------------------------------------------------


def test_answers_that_nothing_asked_for_are_told() -> None:
    story = Story()
    story.resume()
    for path, prompt, status in (("#0", "a", "ok"), ("#1", "b", "skipped"), ("#2", "c", "error"), ("#3", "d", None)):
        story.call(path, prompt, status)  # type: ignore[arg-type]
    assert story.view.unclaimed() == []
    story.resume()
    assert [entry.seq for entry in story.view.unclaimed()] == [1, 2]
    story.call("#0", "a")
    assert [entry.path for entry in story.view.unclaimed()] == ["#1"]


# ---- laws ----------------------------------------------------------------------------------------------------

paths = [f"/0.{number}#0" for number in range(6)]
scripts = st.dictionaries(st.sampled_from(paths), st.sampled_from("ab"), max_size=6)
orders = st.permutations(paths)


@given(before=scripts, after=scripts, first=orders, second=orders)
def test_only_what_is_new_or_changed_is_run(
    before: Calls, after: Calls, first: Sequence[str], second: Sequence[str]
) -> None:
    """Inserting, deleting, moving and changing calls, in any order: as many launches as equal calls are missing."""
    story = Story()
    had = story.attempt_with(before, [path for path in first if path in before])
    assert story.launched == len(before)
    has = story.attempt_with(after, [path for path in second if path in after])
    missing = Counter(after.values()) - Counter(before.values())
    assert story.launched == missing.total()
    assert len(set(has.values())) == len(after), "each answer is given once"
    unclaimed = Counter(before.values()) - Counter(after.values())
    assert len(story.view.unclaimed()) == unclaimed.total()
    entries = story.read().entries
    for path, seq in has.items():
        assert entries[seq].identity == identity(after[path])
        if before.get(path) == after[path] and Counter(after.values())[after[path]] == 1:
            assert seq == had[path]


@given(scripts=st.lists(scripts, min_size=1, max_size=4), orders=st.lists(orders, min_size=5, max_size=5))
def test_each_call_has_the_same_answer_in_every_later_attempt(
    scripts: Sequence[Calls], orders: Sequence[Sequence[str]]
) -> None:
    """However often the script was edited before, and whatever order the calls come in."""
    story = Story()
    for calls, order in zip(scripts, orders, strict=False):
        has = story.attempt_with(calls, [path for path in order if path in calls])
    again = story.attempt_with(scripts[-1], [path for path in orders[-1] if path in scripts[-1]])
    assert again == has
    assert story.launched == 0


@given(calls=scripts, order=orders, data=st.data())
def test_the_order_of_completion_never_matters(calls: Calls, order: Sequence[str], data: st.DataObject) -> None:
    story = Story()
    story.attempt_with(calls)
    beginnings = [record for record in story.records if not isinstance(record, Result)]
    ends = data.draw(st.permutations([record for record in story.records if isinstance(record, Result)]))
    expected = story.read()
    view = read_run_journal([encode_line(record) for record in (*beginnings, *ends)], RUN, strict=True)
    for path in order:
        prompt = calls.get(path, "a")
        one, two = (each.claim(identity(prompt), path) for each in (view, expected))
        assert (one.kind, one.key) == (two.kind, two.key)
        assert not one.is_answered or one.result == two.result


@given(calls=scripts, names=st.lists(st.tuples(st.text(max_size=3), st.none() | st.text(max_size=3)), min_size=12))
def test_labels_and_phases_never_matter(calls: Calls, names: Sequence[tuple[str, str | None]]) -> None:
    story = Story()
    for attempt in range(2):
        story.resume()
        for number, (path, prompt) in enumerate(calls.items()):
            label, phase = names[2 * number % len(names) - attempt]
            claim = story.call(path, prompt, label=label, phase=phase)
            assert claim.kind == ("new" if attempt == 0 else "recorded")
            assert claim.moved is None


statuses = st.sampled_from(["ok", "skipped", "error", "cancelled", None])


@given(ends=st.lists(statuses, max_size=6), calls=st.permutations(paths))
def test_claims_of_equal_calls_are_a_bijection(ends: Sequence[ResultStatus | None], calls: Sequence[str]) -> None:
    story = Story()
    story.resume()
    for path, status in zip(paths, ends, strict=False):
        story.call(path, "a", status)
    story.resume()
    claims = [story.view.claim(identity("a"), path) for path in calls]
    answered = sum(end in ("ok", "skipped") for end in ends)
    assert (
        Counter(kinds(claims))
        == Counter({"recorded": answered, "again": len(ends) - answered, "new": len(paths) - len(ends)}) - Counter()
    )
    assert len({claim.key for claim in claims}) == len(claims)
    seqs = [claim.entry.seq for claim in claims if claim.entry is not None]
    assert sorted(seqs) == list(range(1, len(ends) + 1))


def test_many_equal_calls_are_claimed_and_rejected_in_linear_time() -> None:
    """Each step looks at a few entries: quadratic time would take minutes here."""
    count = 20_000
    story = Story()
    story.attempt_with({f"/0.{number}#0": "a" for number in range(count)})
    story.resume()
    for number in range(count):
        claim = story.view.claim(identity("a"), f"/1.{number}#0" if number % 2 else f"/0.{number}#0")
        assert claim.is_answered
        if number % 3 == 0:
            story.view.reject(claim)
    assert story.view.rejected == len(range(0, count, 3))


def test_places_are_looked_up_while_calls_are_made_in_linear_time() -> None:
    """As when only what failed is run again: some calls run, and for each other one its place is looked at."""
    count = 20_000
    story = Story()
    story.attempt_with({f"#{number}": f"p{number}" for number in range(count)})
    story.resume()
    for number in range(count):
        story.call(f"/0.{number}#0", f"new {number}", None)
        assert story.view.places()[f"#{number}"].seq == number + 1
    assert story.view.places()[f"/0.{count - 1}#0"].seq == 2 * count
