"""The journal of a workflow run, read line by line, and what a resume, a plan or a fork makes of it.

A line that is damaged is never used: its call runs again. Only version 1 has been written so far; a later one is
refused, for what it means is not known here.
"""

import zlib
from collections.abc import Sequence
from functools import cache
from typing import cast

import msgspec

from fanfold.contracts.codec import decode_fact, decode_json, read_json
from fanfold.contracts.facts import Fact
from fanfold.contracts.record import JsonObject
from fanfold.contracts.run_journal import (
    JOURNAL_VERSION,
    AttemptEnd,
    Header,
    Identity,
    Moved,
    Result,
    RunRecord,
    Started,
    Turns,
)
from fanfold.errors import WorkflowInputError
from fanfold.kernel.call_identity import CallMeaning
from fanfold.kernel.changed_lines import changed_lines
from fanfold.kernel.reason_text import reason_text
from fanfold.kernel.run_entries import Claim, RunEntry
from fanfold.kernel.run_view import RunJournalView, refused

NOT_RECORDED = "not recorded"
"""Why a call is run that nothing stands for."""

_ANSWERED = "it waited for a person, who has answered"

_CRC = b',"crc":"'
_CRC_BYTES = len(_CRC) + len('01234567"}')
_MAX_REASON_CHARS = 200
_KNOWN = frozenset(str(each.__struct_config__.tag) for each in (Header, Started, Result, Turns, Moved, AttemptEnd))
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


# ---- lines ---------------------------------------------------------------------------------------------------


class _Kind(msgspec.Struct):
    t: str
    v: int = 0


_kinds = msgspec.json.Decoder(_Kind)


# Made when it is needed: a start is to be short.
@cache
def _records() -> "msgspec.json.Decoder[RunRecord]":
    return msgspec.json.Decoder(RunRecord)


def encode_line(record: RunRecord) -> bytes:
    """The line of a record, without its newline."""
    body = _encode(record)
    if b"\n" in body:  # raw JSON of somebody who likes it indented
        body = msgspec.json.format(body, indent=-1)
    body = body[:-1]
    return b'%b%b%08x"}' % (body, _CRC, zlib.crc32(body))


def decode_line(line: bytes) -> RunRecord | None:
    """The record of a line; None for a type that this version does not know.

    Raises:
        WorkflowInputError: `journal_refused`, a header of a later version.
        ValueError: it is damaged, or no such line; the text says how.
    """
    if not _is_sound(line):
        raise ValueError("it is damaged: its checksum does not fit")
    try:
        record = read_json(line, _records())
    except msgspec.DecodeError as error:
        if _is_of_later_type(line):
            return None
        raise ValueError(f"it cannot be read: {error}") from error
    if isinstance(record, Header):
        _require_version(record.v)
    return record


def _is_of_later_type(line: bytes) -> bool:
    try:
        kind = read_json(line, _kinds)
    except msgspec.DecodeError:
        return False
    if kind.t == "header":
        _require_version(kind.v)
    return kind.t not in _KNOWN


def _is_sound(line: bytes) -> bool:
    return line[-_CRC_BYTES:] == b'%b%08x"}' % (_CRC, zlib.crc32(line[:-_CRC_BYTES]))


def _require_version(version: int) -> None:
    if version > JOURNAL_VERSION:
        reason = f"it has version {version}, and this fanfold reads {JOURNAL_VERSION} at most; update fanfold"
        raise WorkflowInputError("journal_refused", reason)


# ---- reading -------------------------------------------------------------------------------------------------


def read_run_journal(
    lines: Sequence[bytes], run_id: str, *, has_torn_end: bool = False, strict: bool = False
) -> RunJournalView:
    """The view of a journal. Lines without their newline, and split at newlines alone: a value may hold U+2028.

    What cannot be told from a write that was cut off, which is damaged lines at the end, counts as torn; see
    `whole_lines`. A damaged line before them is passed over; see `rejected_lines`.

    Raises:
        WorkflowInputError: `journal_refused`: it is of another run or of a later version; with `strict` also for a line
            that would be passed over.
    """
    view = RunJournalView(run_id)
    whole = len(lines)
    while whole and not _is_sound(lines[whole - 1]):
        whole -= 1
    if has_torn_end or whole < len(lines):
        view.whole_lines = whole
    rejected: list[int] = []
    for index in range(whole):
        fault = _load(view, lines[index])
        if fault is None:
            continue
        if strict:
            reason = f"line {index + 1}: {fault}; without `strict` it is passed over, and its call runs again"
            raise refused(run_id, reason)
        rejected.append(index + 1)
    view.rejected_lines = tuple(rejected)
    view.is_partial |= any(entry.result is None for entry in view.entries.values())
    return view


def _load(view: RunJournalView, line: bytes) -> str | None:
    """Why the line was passed over."""
    try:
        record = decode_line(line)
    except WorkflowInputError as error:
        raise refused(view.run_id, str(error)) from None
    except ValueError as error:
        return str(error)
    return None if record is None else view.load(record)


def facts_of(claim: Claim) -> Sequence[Fact]:
    """The turns that a claimed call goes on from; none where this version cannot read all of them."""
    try:
        return [] if claim.entry is None else [decode_fact(bytes(fact)) for fact in claim.entry.turns]
    except ValueError:
        return []


# ---- forks ---------------------------------------------------------------------------------------------------


def forked_view(parent: RunJournalView, run_id: str) -> RunJournalView:
    """Of a run that begins as a fork of `parent`, before its first record.

    Chance and time stay those of the run that was launched first, or calls built on them would run anew.
    """
    view = RunJournalView(run_id)
    view.seed, view.first_ms = parent.seed, parent.first_ms
    return view


def copied_records(view: RunJournalView) -> list[RunRecord]:
    """What a fork of this run begins with: its answers, under their numbers and keys, and at no cost.

    For a view that was read: of what was taken live it has no contents.
    """
    answers = [entry for entry in view.entries.values() if entry.is_answer and not entry.is_superseded]
    records: list[RunRecord] = []
    for entry in sorted(answers, key=lambda each: each.placed):
        started = Started(
            seq=entry.seq,
            id=entry.identity,
            path=entry.path,
            label=entry.label,
            phase=entry.phase,
            key=entry.key,
            attempt=0,
            call=entry.call,
        )
        assert entry.result is not None
        records += [started, msgspec.structs.replace(entry.result, path=entry.path, attempt=0)]
    return records


# ---- plans ---------------------------------------------------------------------------------------------------


def miss_reason(
    view: RunJournalView, claim: Claim, identity: Identity, path: str, call_json: bytes
) -> tuple[str, tuple[str, ...] | None]:
    """(Why the call is run, the changed lines where another call is recorded for its place)."""
    if claim.entry is not None:
        return why_again(claim.entry), None
    stood = view.places().get(path)
    if stood is None or stood.identity == identity or not stood.is_open:
        return NOT_RECORDED, None
    return changed_call(stood.call, call_json)


def why_again(entry: RunEntry) -> str:
    """Why a call is run that was begun before."""
    if entry.result is None:
        return _ANSWERED if entry.is_answered_last else "in doubt"
    if entry.is_rejected:
        return "its recorded answer cannot be used"
    if entry.result.status == "cancelled":
        return "cancelled before"
    if entry.has_been_answered:
        return _ANSWERED
    fault = entry.result.error
    why = "" if fault is None else f": {reason_text(fault.code, fault.message.strip().partition(chr(10))[0])}"
    return f"failed before{why}"[:_MAX_REASON_CHARS]


_SPOKEN = {"agent_sha": "agent definition", "v": "format"}


def changed_call(before: msgspec.Raw, after: bytes | msgspec.Raw) -> tuple[str, tuple[str, ...] | None]:
    """(What differs between two calls, in words; the changed lines, None where what was asked is lost)."""
    old, new = _fields(before), _fields(after)
    if not old or not new:
        return "changed", None
    changed = [field for field in CallMeaning.__struct_fields__ if not _same(old.get(field), new.get(field))]
    if "agent" in changed:
        changed = [field for field in changed if field != "agent_sha"]
    shown = [field for field in changed if field != "agent_sha"]
    lines = [line for field in shown for line in changed_lines(old.get(field), new.get(field))]
    return f"{', '.join(_SPOKEN.get(field, field) for field in changed)} changed", tuple(lines)


def _fields(call: bytes | msgspec.Raw) -> JsonObject:
    fields: object = decode_json(bytes(call))
    return cast("JsonObject", fields) if isinstance(fields, dict) else {}


def _same(old: object, new: object) -> bool:
    """As JSON: `True` is not 1 there."""
    return _encode_sorted(old) == _encode_sorted(new)
