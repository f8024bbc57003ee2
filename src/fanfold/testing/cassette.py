"""Cassette: a ModelClient that answers from recordings, and records those that are not there yet.

    Cassette("answers.json")                                    # replay; a request that was not recorded is an error
    Cassette("answers.json", "record", inner=LiveModel("openai/gpt-5-mini"))

A recording is found by what the model sees of a request: model, system prompt, messages, tools, schema, limits. The
same request asked several times gets the recorded replies in their order; once more than it was recorded is a miss.
No header or key gets here, for the cassette stands above the wire; `scrub` is for secrets inside the texts.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self, get_args

import msgspec

from fanfold.contracts.messages import ModelReply, ModelRequest
from fanfold.errors import FanfoldError, ProviderError, UsageError
from fanfold.kernel.plain_text import plain
from fanfold.protocols import DeltaSink, ModelCapabilities, ModelClient
from fanfold.session.sound import sound_reply
from fanfold.testing.cassette_file import CassetteContent, Taken, read_cassette, write_cassette
from fanfold.testing.cassette_part import CassettePart, part_path
from fanfold.testing.recorded_call import (
    Piece,
    RecordedRequest,
    Recording,
    Scrub,
    recorded_error,
    recorded_request,
    scrubbed_pieces,
    scrubbed_reply,
)
from fanfold.testing.request_difference import difference, nearest

CassetteMode = Literal["replay", "record", "auto", "live"]
"""`replay`: recordings only. `record`: everything anew, the old recordings are replaced when it is saved. `auto`:
what is recorded is replayed, the rest recorded. `live`: neither, each call goes to the inner model."""

_Signature = tuple[int, int, int] | None


class CassetteMissError(FanfoldError, AssertionError):
    """The request was not recorded; the message shows how the nearest recorded one differs."""

    code = "CASSETTE_MISS"

    def __init__(self, message: str, *, path: str, difference: str) -> None:
        super().__init__(message)
        self.path = path
        self.difference = difference


class _Track(msgspec.Struct):
    """The recordings of one request."""

    taken: list[Taken]
    used: int = 0


class Cassette:
    """Recordings of one model in one file, for any number of calls at once.

    Recorded calls are kept at once (in `<path>.part`), and stand in the file after `save` or `close`, which an agent
    does to its models. It can be used again after that. A path has one recorder at a time.

    Args:
        path: the file; it and its folder are made when something is recorded.
        mode: see `CassetteMode`.
        inner: the model to record; `record` and `live` need one.
        scrub: see `Scrub`; it sees every text of requests, replies and errors, when recording and when comparing.
        record_hint: what a miss tells its reader to do.

    Raises:
        UsageError: an unknown mode, no inner model, or the cassette is being recorded by somebody else.
        CorruptLogError: the file is no cassette, with the line.
    """

    def __init__(
        self,
        path: str | Path,
        mode: CassetteMode = "replay",
        *,
        inner: ModelClient | None = None,
        scrub: Scrub | None = None,
        record_hint: str = "",
    ) -> None:
        if mode not in get_args(CassetteMode):
            raise UsageError(f"the mode of a cassette is replay, record, auto or live, not {mode!r}")
        if inner is None and mode in ("record", "live"):
            raise UsageError(f"a cassette in mode '{mode}' needs the model to ask: inner=<a ModelClient>")
        self.path = Path(path)
        self.mode = mode
        self.misses: list[CassetteMissError] = []
        """Those that were raised: a fan-out makes failed steps of them, and a test may look at none."""
        self._inner = inner
        self._scrub = scrub
        self._record_hint = record_hint or f'Cassette({str(path)!r}, "record", inner=<a ModelClient>)'
        self._lock = threading.Lock()
        self._tracks: dict[bytes, _Track] = {}
        self._old: list[Recording] = []
        self._new: list[tuple[int, Recording]] = []
        self._asked = 0
        self._is_saved = True
        self._part: CassettePart | None = None
        self._capabilities: ModelCapabilities | None = None
        self._signature = _signature(self.path)
        if mode in ("replay", "auto"):
            self._load()

    def _load(self) -> None:
        content = read_cassette(self.path)
        if content is not None:
            self._add(content)
        if self.mode == "auto" and part_path(self.path).exists():
            self._take_up()

    def _add(self, content: CassetteContent) -> None:
        self._capabilities = self._capabilities or content.capabilities
        for taken in content.taken:
            self._tracks.setdefault(taken.recording.request.key(), _Track([])).taken.append(taken)
            self._old.append(taken.recording)

    def _take_up(self) -> None:
        """What a recorder that crashed has left."""
        part = CassettePart(self.path)
        left = part.read()
        if left is None:
            part.remove()
            return
        self._add(CassetteContent(left.capabilities, tuple(Taken(each, 0) for each in left.recordings)))
        self._part = part
        self._asked = len(left.recordings)
        self._is_saved = False

    # ---- a model --------------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> ModelCapabilities:
        """Those of the recorded model, for they shape the requests; of the inner one where nothing is recorded."""
        if self._capabilities is None and self._inner is not None and self.mode != "replay":
            self._capabilities = self._inner.capabilities
        return self._capabilities or ModelCapabilities()

    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        """The recorded reply, streamed as it was, or the recorded ProviderError; otherwise as the mode says.

        Raises:
            CassetteMissError: there is none, and nothing may be recorded.
        """
        inner = self._inner
        if inner is not None and self.mode == "live":
            return await inner.generate(request, deltas)
        asked = recorded_request(request, self._scrub)
        with self._lock:
            self._asked += 1
            number = self._asked
            recording = self._next(asked)
        if recording is not None:
            return _replayed(recording, deltas)
        if inner is None or self.mode == "replay":
            raise self._miss(asked)
        return await self._recorded(number, asked, request, deltas, inner)

    def _next(self, asked: RecordedRequest) -> Recording | None:
        track = self._tracks.get(asked.key())
        if track is None or track.used == len(track.taken):
            return None
        track.used += 1
        return track.taken[track.used - 1].recording

    async def close(self) -> None:
        """Save, and close the inner model."""
        try:
            self.save()
        finally:
            if self._inner is not None and self.mode != "replay":
                await self._inner.close()

    # ---- recording ------------------------------------------------------------------------------------------------

    async def _recorded(
        self, number: int, asked: RecordedRequest, request: ModelRequest, deltas: DeltaSink | None, inner: ModelClient
    ) -> ModelReply:
        """Ask the inner model. A call that is cancelled, or that ends in something else than a ProviderError, leaves
        nothing."""
        with self._lock:
            self._recorder()  # which may be refused, before anything is paid for
        heard = None if deltas is None else _Heard(deltas)
        try:
            given = await inner.generate(request, heard)
        except ProviderError as error:
            kept = Recording(request=asked, error=recorded_error(error, self._scrub), streamed=self._pieces(heard))
            self._keep(number, kept)
            raise
        reply = sound_reply(given)
        clean = reply if self._scrub is None else scrubbed_reply(reply, self._scrub)
        self._keep(number, Recording(request=asked, reply=clean, streamed=self._pieces(heard)))
        return reply

    def _pieces(self, heard: "_Heard | None") -> tuple[str | Piece, ...]:
        if heard is None:
            return ()
        return tuple(heard.pieces) if self._scrub is None else scrubbed_pieces(heard.pieces, self._scrub)

    def _keep(self, number: int, recording: Recording) -> None:
        with self._lock:
            self._recorder().keep(number, recording)
            self._new.append((number, recording))
            self._is_saved = False

    def _recorder(self) -> CassettePart:
        if self._part is None:
            capabilities = self.capabilities  # which a model that cannot be had refuses
            part = CassettePart(self.path)
            if _signature(self.path) != self._signature:
                part.release()
                raise UsageError(f"the cassette {self.path} was changed since it was opened; open it anew")
            part.begin(capabilities)
            self._part = part
        return self._part

    def save(self) -> None:
        """Put what was recorded into the file, in the order in which it was asked for. Without anything new the file
        stays as it is.

        Raises:
            LogWriteError: nothing was changed; the recordings are still in `<path>.part`.
        """
        with self._lock:
            if not self._is_saved:
                new = [recording for _, recording in sorted(self._new, key=lambda each: each[0])]
                write_cassette(self.path, self.capabilities, [*self._old, *new])
                self._signature = _signature(self.path)
                self._is_saved = True
            if self._part is not None:
                self._part.remove()
                self._part = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.save()

    # ---- what is recorded -----------------------------------------------------------------------------------------

    def unused(self) -> list[Recording]:
        """Recordings of the file that were not asked for yet, in its order."""
        return [taken.recording for taken in self._all_taken() if not self._is_used(taken)]

    def _all_taken(self) -> list[Taken]:
        places = {id(recording): place for place, recording in enumerate(self._old)}
        taken = [each for track in self._tracks.values() for each in track.taken]
        return sorted(taken, key=lambda each: places[id(each.recording)])

    def _is_used(self, taken: Taken) -> bool:
        track = self._tracks[taken.recording.request.key()]
        return any(each is taken for each in track.taken[: track.used])

    def _miss(self, asked: RecordedRequest) -> CassetteMissError:
        differs, why = self._reason(asked)
        left = ""
        if self.mode == "replay" and part_path(self.path).exists():
            left = f'\nA recording was not finished: {part_path(self.path)}; mode "auto" takes it up.'
        message = f"{why}{left}\nTo record: {self._record_hint}"
        error = CassetteMissError(message, path=str(self.path), difference=differs)
        self.misses.append(error)
        return error

    def _reason(self, asked: RecordedRequest) -> tuple[str, str]:
        """The difference from the nearest recording, and the story."""
        track = self._tracks.get(asked.key())
        if track is not None:
            times = "once" if len(track.taken) == 1 else f"{len(track.taken)} times"
            story = f"{self.path} has this request {times}, and it was asked for once more:\n{_indented(_said(asked))}"
            return "", story
        if not self._old:
            what = "has no recordings" if self.path.exists() else "does not exist"
            return "", f"the cassette {self.path} {what}; asked was:\n{_indented(_said(asked))}"
        candidates = sorted(self._all_taken(), key=self._is_used)  # of equally near ones, one that is not used
        found = candidates[nearest(asked, [each.recording.request for each in candidates]) or 0]
        differs = difference(found.recording.request, asked)
        place = f"line {found.line}" if found.line else "of the unfinished part"
        story = (
            f"{self.path} has no recording of this request ({len(self._old)} recorded, {len(self.unused())} not asked "
            f"for yet).\nThe nearest one, {found.recording.request.id()} at {place}, differs in\n{_indented(differs)}"
        )
        return differs, story


class _Heard:
    """Passes on what is streamed, and keeps it."""

    def __init__(self, deltas: DeltaSink) -> None:
        self._deltas = deltas
        self.pieces: list[str | Piece] = []

    def text(self, piece: str) -> None:
        self.pieces.append(plain(piece))
        self._deltas.text(piece)

    def reasoning(self, piece: str) -> None:
        self.pieces.append(Piece(reasoning=plain(piece)))
        self._deltas.reasoning(piece)

    def restart(self) -> None:
        self.pieces.append(Piece(restart=True))
        self._deltas.restart()


def _replayed(recording: Recording, deltas: DeltaSink | None) -> ModelReply:
    if deltas is not None:
        for piece in recording.streamed or _in_one_piece(recording.reply):
            _tell(deltas, piece)
    if recording.error is not None:
        raise recording.error.as_error()
    return recording.reply or ModelReply()


def _in_one_piece(reply: ModelReply | None) -> Sequence[str | Piece]:
    """For a listener to a call that nobody listened to when it was recorded."""
    if reply is None:
        return ()
    reasoning: list[str | Piece] = [Piece(reasoning=reply.reasoning)] if reply.reasoning else []
    return [*reasoning, reply.text] if reply.text else reasoning


def _tell(deltas: DeltaSink, piece: str | Piece) -> None:
    if isinstance(piece, str):
        deltas.text(piece)
    elif piece.restart:
        deltas.restart()
    else:
        deltas.reasoning(piece.reasoning)


def _said(asked: RecordedRequest) -> str:
    newest = asked.messages[-1] if asked.messages else {}
    text = str(newest.get("text", newest.get("output", "")))
    return f"model {asked.model}, {len(asked.messages)} messages, the newest ({newest.get('role')}): {text[:400]}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _signature(path: Path) -> _Signature:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
