"""`ls`: one folder's entries by name, in pages."""

import os

from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.workspace import Workspace, printable

PAGE = 200
MAX_PAGE = 1_000

SPEC = ToolSpec(
    name="ls",
    description="List a directory: folders end in /, links show their target, files their size in bytes.",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "default: the workspace"},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
            "cursor": {"type": "integer", "minimum": 0, "description": "from the page before"},
        },
        "additionalProperties": False,
    },
    is_read_only=True,
    is_parallel_safe=True,
)


def ls(workspace: Workspace, args: JsonObject) -> ToolOutput:
    folder = workspace.resolve(args.get("path", "."))
    if folder.is_file():
        raise ToolRefusal(f"{workspace.shown(folder)} is a file; use read")
    start: int = args.get("cursor", 0)
    end = start + args.get("limit", PAGE)
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    lines = [_line(entry) for entry in entries[start:end]]
    if end < len(entries):
        lines.append(f"[{len(entries) - end} more; continue with cursor={end}]")
    return ToolOutput(output="\n".join(lines) or "[nothing here]")


def _line(entry: os.DirEntry[str]) -> str:
    name = printable(entry.name)
    try:
        if entry.is_symlink():
            return f"{name} -> {printable(os.readlink(entry.path))}"
        if entry.is_dir():
            return f"{name}/"
        return f"{name}  {entry.stat(follow_symlinks=False).st_size}"
    except OSError:  # it went away since the folder was listed
        return name
