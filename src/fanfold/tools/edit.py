"""`edit`: exact text for exact text, only if it is unambiguous and the file did not change meanwhile."""

from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.tools.read import refuse_binary
from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.workspace import MAX_FILE_BYTES, Workspace

_MOST_LINES_SHOWN = 20

SPEC = ToolSpec(
    name="edit",
    description="Replace old_string by new_string in a file. It must occur exactly once, or set replace_all.",
    parameters={
        "type": "object",
        "properties": {
            "file_path": {"type": "string"},
            "old_string": {"type": "string", "description": "exact text, without line numbers"},
            "new_string": {"type": "string"},
            "replace_all": {"type": "boolean"},
            "dry_run": {"type": "boolean", "description": "only say what would change"},
            "max_replacements": {"type": "integer", "minimum": 1},
            "expected_replacements": {"type": "integer", "minimum": 1},
        },
        "required": ["file_path", "old_string", "new_string"],
        "additionalProperties": False,
    },
)


def edit(workspace: Workspace, args: JsonObject) -> ToolOutput:
    path = workspace.resolve(args["file_path"])
    workspace.refuse_protected(path)
    shown = workspace.shown(path)
    with workspace.open_file(path) as file:
        refuse_binary(file, shown)
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ToolRefusal(f"{shown} is larger than {MAX_FILE_BYTES} bytes; edit does not take it")
    old, new = _as_in_file(content, args["old_string"]), _as_in_file(content, args["new_string"])
    count = content.count(old) if old else 0
    _refuse_count(shown, args, old, new, count)
    workspace.refuse_size(path, len(content) + count * (len(new) - len(old)))
    if args.get("dry_run"):
        lines = _line_numbers(content, old)
        return ToolOutput(output=f"Would replace {count} occurrence(s) in {shown} (line {lines})")
    workspace.replace(path, content.replace(old, new), expected=content)
    return ToolOutput(output=f"Replaced {count} occurrence(s) in {shown}")


def _as_in_file(content: bytes, text: str) -> bytes:
    """`text` with the line ends of a file that has only CRLF ones, which a model cannot know from `read`."""
    encoded = text.encode()
    is_crlf = b"\r\n" in content and content.count(b"\n") == content.count(b"\r\n")
    return encoded.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") if is_crlf else encoded


def _refuse_count(shown: str, args: JsonObject, old: bytes, new: bytes, count: int) -> None:
    expected, most = args.get("expected_replacements"), args.get("max_replacements")
    if not old:
        raise ToolRefusal("old_string must not be empty")
    if old == new:
        raise ToolRefusal("old_string and new_string are the same: there is nothing to change")
    if count == 0:
        raise ToolRefusal(f"old_string not found in {shown}; it must match the file exactly, white space included")
    if expected is not None and count != expected:
        raise ToolRefusal(f"Replacement count mismatch in {shown}: expected {expected} replacement(s), found {count}")
    if count > 1 and not args.get("replace_all"):
        raise ToolRefusal(f"old_string found {count} times in {shown}; add lines around it, or set replace_all")
    if most is not None and count > most:
        raise ToolRefusal(
            f"Edit would replace {count} occurrence(s) in {shown}, which exceeds max_replacements={most}."
        )


def _line_numbers(content: bytes, old: bytes) -> str:
    numbers: list[str] = []
    line, seen, at = 1, 0, content.find(old)
    while at >= 0 and len(numbers) < _MOST_LINES_SHOWN:
        line += content.count(b"\n", seen, at)
        numbers.append(str(line))
        seen, at = at, content.find(old, at + len(old))
    return ", ".join(numbers) + (", ..." if at >= 0 else "")
