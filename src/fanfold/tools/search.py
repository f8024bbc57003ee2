"""`search`: lines by regular expression (grep) or files by name (glob), in pages, ordered by path."""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.kernel.globs import compile_glob
from fanfold.protocols import ToolScope
from fanfold.tools.artifacts import bounded
from fanfold.tools.grep import GrepJob, Hit, grep
from fanfold.tools.refusal import ToolRefusal, failed_output
from fanfold.tools.walk import MAX_FILES, walk
from fanfold.tools.workspace import Workspace, printable

PAGE = 200
MAX_PAGE = 1_000
MAX_CONTEXT = 20
MAX_QUERY_CHARACTERS = 1_000
MAX_LINE_CHARACTERS = 500
MAX_ANCHORS = 64
_MOST_ALTERNATIVES = 64
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")

SPEC = ToolSpec(
    name="search",
    description=(
        "Find text (mode grep: query is a regular expression) or files (mode glob: query like src/**/*.py; "
        "without / it matches names anywhere). Skips .git, caches, binary files."
    ),
    parameters={
        "type": "object",
        "properties": {
            "mode": {"enum": ["grep", "glob"]},
            "query": {"type": "string", "minLength": 1, "maxLength": MAX_QUERY_CHARACTERS},
            "path": {"type": "string"},
            "include": {"type": "string", "description": "glob of files to grep"},
            "context": {"type": "integer", "minimum": 0, "maximum": MAX_CONTEXT},
            "case_sensitive": {"type": "boolean", "default": True},
            "output_mode": {"enum": ["content", "files_with_matches", "count"]},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
            "cursor": {"type": "integer", "minimum": 0},
            "sort": {"enum": ["path"]},
        },
        "required": ["mode", "query"],
        "additionalProperties": False,
    },
    is_read_only=True,
    is_parallel_safe=True,
)


@dataclass(frozen=True, slots=True)
class SearchTool:
    workspace: Workspace
    rg: str = "rg"
    seconds: float = 20.0
    """After which a search that matches lines is given up."""
    spec: ToolSpec = SPEC

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        try:
            base, files, notes = await asyncio.to_thread(_candidates, self.workspace, args, scope.may_read)
            if args["mode"] == "glob":
                return _glob_page(args, _prefix(self.workspace, base), files, notes)
            job = _job(args, base, files)
            hits = await grep(job, seconds=self.seconds, rg=self.rg)
            return await asyncio.to_thread(_grep_page, self.workspace, args, job, hits, notes)
        except (ToolRefusal, OSError) as error:
            return failed_output(f"search {args.get('path', '.')}", error)


def _candidates(
    workspace: Workspace, args: JsonObject, may_read: Callable[[str], bool]
) -> tuple[Path, list[str], list[str]]:
    """The base folder, the files below it that the call is about, and notes on what was left out."""
    base = workspace.resolve(args.get("path", "."))
    if base.is_file():
        folder, files, is_partial = base.parent, [base.name], False
    elif base.is_dir():
        folder, (files, is_partial) = base, walk(base)
        files = _named(files, args["query"] if args["mode"] == "glob" else args.get("include"))
    else:
        raise ToolRefusal(f"{workspace.shown(base)} is no file or folder")
    notes = [f"[only the first {MAX_FILES} files were looked at; narrow it with path]"] if is_partial else []
    if args["mode"] == "glob":
        return folder, files, notes
    place = folder.relative_to(workspace.root)
    readable = [name for name in files if may_read((place / name).as_posix())]
    if left_out := len(files) - len(readable):
        notes.append(f"[{left_out} file(s) left out: permissions do not let read have them]")
    return folder, readable, notes


def _named(files: list[str], pattern: str | None) -> list[str]:
    if not pattern:
        return files
    fits = _name_filters(pattern)
    return [name for name in files if any(fit(name) for fit in fits)]


def _name_filters(pattern: str) -> list[Callable[[str], bool]]:
    """Any of them fits what `pattern` means, its `{a,b}` spelled out."""
    patterns = [pattern.removeprefix("./").lstrip("/")]
    while any(map(_BRACES.search, patterns)) and len(patterns) <= _MOST_ALTERNATIVES:
        patterns = [spelled for each in patterns for spelled in _spelled(each)]
    if len(patterns) > _MOST_ALTERNATIVES:
        raise ToolRefusal(f"the glob '{pattern}' has more than {_MOST_ALTERNATIVES} alternatives")
    return [_name_filter(each) for each in patterns]


def _name_filter(pattern: str) -> Callable[[str], bool]:
    """Fits paths; a pattern without a slash is about names at any depth, as is `**/` before such a one."""
    name_pattern = pattern.removeprefix("**/")
    if "/" in name_pattern:
        return compile_glob(pattern).matches
    glob = compile_glob(name_pattern)
    return lambda path: glob.matches(path.rpartition("/")[2])


def _spelled(pattern: str) -> Iterator[str]:
    found = _BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    for choice in found[1].split(","):
        yield pattern[: found.start()] + choice + pattern[found.end() :]


def _prefix(workspace: Workspace, base: Path) -> str:
    return "" if base == workspace.root else f"{workspace.shown(base)}/"


def _glob_page(args: JsonObject, prefix: str, files: list[str], notes: list[str]) -> ToolOutput:
    start: int = args.get("cursor", 0)
    end = start + args.get("limit", PAGE)
    lines = [prefix + printable(name) for name in files[start:end]]
    told: dict[str, JsonValue] = {"shown": len(lines)}
    if end < len(files):
        lines.append(f"[{len(files) - end} more; continue with cursor={end}]")
        told["next_cursor"] = end
    return ToolOutput(output=_page(lines, "no file matches", notes), metadata=told)


def _job(args: JsonObject, base: Path, files: list[str]) -> GrepJob:
    mode = args.get("output_mode", "content")
    enough: int = args.get("cursor", 0) + args.get("limit", PAGE) + 1
    return GrepJob(
        base=base,
        files=files,
        query=args["query"],
        case_sensitive=args.get("case_sensitive", True),
        counts=mode != "content",
        per_file={"content": enough, "files_with_matches": 1, "count": 1_000_000_000}[mode],
        enough=enough,
    )


def _grep_page(workspace: Workspace, args: JsonObject, job: GrepJob, hits: list[Hit], notes: list[str]) -> ToolOutput:
    start: int = args.get("cursor", 0)
    end = start + args.get("limit", PAGE)
    page = hits[start:end]
    prefix = _prefix(workspace, job.base)
    lines: list[str] = []
    anchors: list[str] = []
    for index, group in groupby(page, key=lambda hit: hit[0]):
        name = prefix + printable(job.files[index])
        numbers = [number for _, number in group]
        anchors.append(name)
        if not job.counts:
            lines += [
                name,
                *_shown_lines(workspace, job.base / job.files[index], numbers, args.get("context", 0)),
            ]
        elif args["output_mode"] == "count":
            lines.append(f"{name}: {numbers[0]}")
        else:
            lines.append(name)
    if end < len(hits):
        lines.append(f"[more matches follow; continue with cursor={end}]")
    output = _page(lines, "no match", notes)
    return bounded(workspace, "search", ToolOutput(output=output, source_anchors=tuple(anchors[:MAX_ANCHORS])))


def _shown_lines(workspace: Workspace, path: Path, numbers: list[int], context: int) -> Iterator[str]:
    """`12: text` for a match, `11- text` for a line around it, `--` for lines left out between them."""
    matching = set(numbers)
    wanted = {near for number in numbers for near in range(number - context, number + context + 1)}
    last, before = max(wanted), 0
    with workspace.open_file(path) as file:
        for number, line in enumerate(file, 1):
            if number > last:
                break
            if number in wanted:
                if context and before and number > before + 1:
                    yield "--"
                text = line.rstrip(b"\r\n").decode("utf-8", "replace")
                cut = f"{text[:MAX_LINE_CHARACTERS]}… [line cut]" if len(text) > MAX_LINE_CHARACTERS else text
                yield f"{number}{':' if number in matching else '-'} {cut}"
                before = number


def _page(lines: list[str], nothing: str, notes: list[str]) -> str:
    return "\n".join([*(lines or [f"[{nothing}]"]), *notes])
