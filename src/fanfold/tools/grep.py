"""Which lines of which files match a pattern: asked of ripgrep where it is installed, else of `grep_worker`.

Both are given the same files and answer with numbers only, so what is shown afterwards does not depend on
which one ran. A pattern that ripgrep refuses (back-references, look-around) is tried with Python too; beyond
that, a pattern should keep to what both dialects mean alike.
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fanfold.tools import grep_worker
from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.workspace import OPEN_FLAGS

_ARGUMENT_BYTES = 128 * 1024
"""Of file names in one call of ripgrep; Linux takes 2 MiB in all."""
_RG_OPTIONS = (
    "--no-config", "--no-heading", "--with-filename", "--line-number", "--null", "--color=never", "--text",
    "--encoding=none", "--no-messages", "--max-columns=1",
)  # fmt: skip

Hit = tuple[int, int]
"""Index of a file, and the number of a matching line in it or the count of its matching lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrepJob:
    base: Path
    files: Sequence[str]
    """Relative to `base`, in the order in which hits are wanted."""
    query: str
    case_sensitive: bool
    counts: bool
    """One hit a file with its count of matching lines, instead of one hit a line."""
    per_file: int
    """Matching lines after which a file is left."""
    enough: int
    """Hits after which the search may stop."""


async def grep(job: GrepJob, *, seconds: float, rg: str = "rg") -> list[Hit]:
    """Hits in order, at least `job.enough` of them if there are so many. Binary files have none.

    Raises:
        ToolRefusal: the pattern is wrong, or it took longer than `seconds`.
    """
    try:
        async with asyncio.timeout(seconds):
            program = shutil.which(rg)
            hits = await _ask_ripgrep(program, job) if program else None
            return await _ask_python(job) if hits is None else hits
    except TimeoutError:
        raise ToolRefusal(
            f"search gave up after {seconds:g} s; simplify the pattern, or narrow it with path or include"
        ) from None


async def _ask_ripgrep(program: str, job: GrepJob) -> list[Hit] | None:
    """None: ripgrep would not (a pattern of another dialect, a file gone)."""
    options = [*_RG_OPTIONS, f"--max-count={job.per_file}"]
    options += ["--count"] if job.counts else []
    options += [] if job.case_sensitive else ["--ignore-case"]
    hits: list[Hit] = []
    for first, names in _batches(job.files):
        arguments = [*options, "-e", job.query, "--", *(f"./{name}" for name in names)]
        code, output, _ = await _output_of(program, arguments, job.base)
        if code > 1:
            return None
        places = {os.fsencode(f"./{name}"): first + offset for offset, name in enumerate(names)}
        found = sorted(_ripgrep_hits(output, places))
        kept = await asyncio.to_thread(_without_binary, job, found)
        hits += kept
        if len(hits) >= job.enough:
            break
    return hits


def _batches(files: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Runs of files whose names fit one command line, each with the index of its first."""
    first = size = 0
    for index, name in enumerate(files):
        size += len(os.fsencode(name)) + 3
        if size > _ARGUMENT_BYTES:
            yield first, files[first:index]
            first, size = index, len(os.fsencode(name)) + 3
    if first < len(files):
        yield first, files[first:]


def _ripgrep_hits(output: bytes, places: dict[bytes, int]) -> Iterator[Hit]:
    """From `<name> NUL <number>` lines; a line's number is followed by `:` and a note instead of the line."""
    for line in output.split(b"\n"):
        name, _, rest = line.partition(b"\0")
        if name in places:
            yield places[name], int(rest.partition(b":")[0])


def _without_binary(job: GrepJob, hits: list[Hit]) -> list[Hit]:
    texts = {index for index in {index for index, _ in hits} if not _is_binary(job.base / job.files[index])}
    return [hit for hit in hits if hit[0] in texts]


def _is_binary(path: Path) -> bool:
    try:
        # Should it have turned into a pipe since it was searched, opening it must not wait for a writer.
        with open(path, "rb", opener=lambda name, _: os.open(name, OPEN_FLAGS)) as file:
            return b"\0" in file.read(grep_worker.SNIFFED_BYTES)
    except OSError:  # gone since it was searched: nothing can be shown of it
        return True


async def _ask_python(job: GrepJob) -> list[Hit]:
    task = {
        "files": list(job.files),
        "query": job.query,
        "case_sensitive": job.case_sensitive,
        "counts": job.counts,
        "per_file": job.per_file,
        "enough": job.enough,
    }
    arguments = ["-I", "-S", "-X", "utf8", grep_worker.__file__]
    code, output, errors = await _output_of(sys.executable, arguments, job.base, json.dumps(task).encode())
    if code == 2:
        raise ToolRefusal(f"query is not a valid regular expression: {errors.decode('utf-8', 'replace')}")
    if code != 0:
        raise ToolRefusal(f"search failed with exit code {code}: {errors.decode('utf-8', 'replace')[-500:]}")
    pairs = (line.split() for line in output.splitlines())
    return [(int(index), int(number)) for index, number in pairs]


async def _output_of(program: str, arguments: list[str], base: Path, given: bytes = b"") -> tuple[int, bytes, bytes]:
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=base,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate(given)
    except BaseException:  # cancelled or out of time: it must not run on
        if process.returncode is None:
            process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output, errors
