"""Artifacts: the whole of an output that is too long for a model, kept beside the part that it gets."""

import hashlib
import os
import re
import secrets
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from fanfold.contracts.messages import ToolOutput
from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.workspace import Workspace

MAX_OUTPUT_BYTES = 100 * 1024
MAX_ARTIFACT_BYTES = 16 * 1024 * 1024
_END_BYTES = MAX_OUTPUT_BYTES // 2 - 256
"""Kept of each end of a long output; the rest of the limit is for the line between them."""
_BROKEN = "\ufffd"
_URI = re.compile(r"a3s://tool-output/[a-z_]+/([0-9a-f]{64})")


def artifact_path(workspace: Workspace, uri: str) -> Path | None:
    """The file of an artifact URI, in the records of `workspace`; None when `uri` is none."""
    found = _URI.fullmatch(uri)
    return workspace.records.resolve(f".a3s/artifacts/{found[1]}") if found else None


class Capture:
    """Takes an output in pieces; holds at most about 150 KiB, and from the limit on writes all to a file.

    The file is `.a3s/artifacts/<sha256>` in the records of the workspace, at most 16 MiB. That it cannot be written
    (disk full) is said in the output and costs nothing but the middle part.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        self._kept = 0
        self._digest = hashlib.sha256()
        self._draft: Path | None = None
        self._file: BinaryIO | None = None
        self._fault: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def write(self, piece: bytes) -> None:
        self._total += len(piece)
        room = _END_BYTES - len(self._head)
        self._head += piece[:room]
        if len(piece) > room:
            self._tail += piece[room:]
        if self._total > 2 * _END_BYTES and self._fault is None:
            self._keep(piece)
        if len(self._tail) > 2 * _END_BYTES:
            del self._tail[:-_END_BYTES]

    def finish(self, tool: str) -> tuple[str, str | None]:
        """The output, or its ends with a line about the middle; and the URI of the whole, if it has one."""
        if self._total <= 2 * _END_BYTES:
            return _plain((self._head + self._tail).decode("utf-8", "replace")), None
        uri = self._seal(tool)
        left_out = self._total - 2 * _END_BYTES
        whole = f"not kept: {self._fault}" if uri is None else f"read {uri} with offset and limit"
        if uri is not None and self._total > MAX_ARTIFACT_BYTES:
            whole += f", which holds the first {MAX_ARTIFACT_BYTES} bytes"
        mark = f"\n[... {left_out} bytes left out; the whole output: {whole} ...]\n"
        # A character that the cut went through is dropped from both ends.
        head = self._head.decode("utf-8", "replace").rstrip(_BROKEN)
        tail = self._tail[-_END_BYTES:].decode("utf-8", "replace").lstrip(_BROKEN)
        return _plain(head) + mark + _plain(tail), uri

    def keep_whole(self, tool: str, text: str) -> str | None:
        """Keep `text` whatever its length; its URI, None when that could not be."""
        self._head += text.encode("utf-8", "replace")
        self._keep(b"")  # which begins a file with what was held back
        return self._seal(tool)

    def _keep(self, piece: bytes) -> None:
        try:
            if self._file is None:
                self._file = self._open()
                piece = bytes(self._head + self._tail)
            piece = piece[: MAX_ARTIFACT_BYTES - self._kept]
            self._file.write(piece)
            self._digest.update(piece)
            self._kept += len(piece)
        except (OSError, ToolRefusal) as error:
            self._fail(error)

    def _open(self) -> BinaryIO:
        folder = self._workspace.records.resolve(".a3s/artifacts")
        folder.mkdir(parents=True, exist_ok=True)
        self._draft = folder / f".draft-{secrets.token_hex(8)}"
        return self._draft.open("xb")

    def _seal(self, tool: str) -> str | None:
        if self._file is None or self._draft is None:
            return None
        name = self._digest.hexdigest()
        try:
            self._file.flush()
            os.fsync(self._file.fileno())  # the fact that names this file will be on disk too
            self._file.close()
            self._draft.replace(self._draft.with_name(name))
        except OSError as error:
            self._fail(error)
            return None
        self._file = self._draft = None
        return f"a3s://tool-output/{tool}/{name}"

    def _fail(self, error: OSError | ToolRefusal) -> None:
        self._fault = (error.strerror if isinstance(error, OSError) else None) or str(error)
        self._drop()

    def _drop(self) -> None:
        file, draft = self._file, self._draft
        self._file = self._draft = None
        try:
            if file is not None:
                file.close()
            if draft is not None:
                draft.unlink(missing_ok=True)
        except OSError:
            pass  # a leftover draft is harmless, and the disk that refuses it was reported already


def bounded(workspace: Workspace, tool: str, answer: ToolOutput) -> ToolOutput:
    """`answer` within the output limit."""
    encoded = answer.output.encode("utf-8", "replace")
    if len(encoded) <= 2 * _END_BYTES:
        return answer
    with Capture(workspace) as capture:
        capture.write(encoded)
        output, artifact = capture.finish(tool)
    return msgspec.structs.replace(answer, output=output, artifact=artifact)


def keep_text(workspace: Workspace, tool: str, text: str) -> str | None:
    """Keep a text of which a model sees a part only; returns what `read` takes to show the whole."""
    with Capture(workspace) as capture:
        return capture.keep_whole(tool, text)


def _plain(text: str) -> str:
    # One byte for each bad one, so that binary noise cannot outgrow the limit; some providers refuse NUL.
    return text.replace(_BROKEN, "?").replace("\0", "?")
