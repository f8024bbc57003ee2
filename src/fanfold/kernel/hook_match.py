"""Which calls a hook hears, by its matcher: compared as permission rules are, so that no spelling slips past."""

from collections.abc import Callable, Iterator
from typing import cast

from fanfold.contracts.governance import HookMatcher
from fanfold.contracts.record import JsonObject
from fanfold.kernel.permissions import Rule, normal_path, pieces_of

_PATH_KEYS = ("file_path", "path")
_HERE_BY_DEFAULT = ("ls", "search")


def is_heard(matcher: HookMatcher, payload: JsonObject, real_path: Callable[[str], str] = normal_path) -> bool:
    """Whether a hook with `matcher` hears an event with `payload`: each pattern that is set must match, and a pattern
    about tools, paths or commands matches no event without them.

    Args:
        real_path: the workspace-relative path that a path argument really leads to (`Workspace.canonical`).
    """
    if matcher.session_id is not None and matcher.session_id != payload.get("session_id"):
        return False
    tool = str(payload.get("tool", ""))
    if matcher.tool is not None and not _rule(matcher.tool).names(tool):
        return False
    given = payload.get("args")
    args = cast("JsonObject", given) if isinstance(given, dict) else {}
    if matcher.command_pattern is not None and not _matches(matcher.command_pattern, _commands(tool, args)):
        return False
    return matcher.path_pattern is None or _matches(matcher.path_pattern, _paths(tool, args, real_path))


def _rule(tool: str = "", pattern: str | None = None) -> Rule:
    return Rule(f"{tool}({pattern})", tool.lower(), pattern)


def _matches(pattern: str, texts: Iterator[str]) -> bool:
    return any(map(_rule(pattern=pattern).matches, texts))


def _commands(tool: str, args: JsonObject) -> Iterator[str]:
    """The command line and each command in it."""
    if tool.lower() == "bash":
        yield from pieces_of("bash", str(args.get("command", "")))


def _paths(tool: str, args: JsonObject, real_path: Callable[[str], str]) -> Iterator[str]:
    """Each path of a call of any tool, as written and as it really is."""
    for path in _written_paths(tool, args):
        yield path
        yield real_path(path)


def _written_paths(tool: str, args: JsonObject) -> Iterator[str]:
    files = args.get("files")
    listed = cast("list[object]", files) if isinstance(files, list) else []
    each_path = [cast("JsonObject", each).get("path") if isinstance(each, dict) else each for each in listed]
    written = [path for path in (*map(args.get, _PATH_KEYS), *each_path) if isinstance(path, str)]
    yield from written
    if not written and tool.lower() in _HERE_BY_DEFAULT:
        yield "."
