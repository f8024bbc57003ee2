"""`fanfold workflow show`."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from fanfold.cli.cells import one_line, pad
from fanfold.cli.console import Console
from fanfold.cli.event_fields import object_of
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.workflow_list import state_of
from fanfold.cli.workflow_named import find_info, open_project, read_script_text
from fanfold.cli.workflow_refusals import refusals
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import WorkflowInfo

_NAME_CELLS = 12
_WIDTH = 100


@click.command("show")
@click.argument("name", metavar="NAME|PATH.py")
@click.option("--source", is_flag=True, help="Its text, and nothing else.")
@json_option
@workspace_option
@console_options
def command(*, console: Console, name: str, source: bool, as_json: bool) -> None:
    """What the workflow NAME is for, which phases and arguments it has, and where it comes from.

    \b
    fanfold workflow show review-changes --source > .a3s/workflows/mine.py
    """
    with refusals():
        info = find_info(name, open_project())
        text = _text_of(info) if source else None
    if as_json:
        more = {} if text is None else {"source": text}
        console.write_json({"schema": "fanfold/workflow/v1", **info.to_dict(), **more})
    elif text is not None:
        console.write(text)
    else:
        console.write("\n".join(_lines(info, min(console.out_width or _WIDTH, _WIDTH))) + "\n")
        if info.needs_approval:
            console.say(f"approve it with: fanfold workflow approve {info.name}")


def _text_of(info: WorkflowInfo) -> str:
    """Also of one that cannot be run."""
    if info.path is not None:
        return read_script_text(Path(info.path))
    return open_project().registry.script(info.name).text or ""


def _lines(info: WorkflowInfo, width: int) -> Iterator[str]:
    yield f"{info.name} ({info.kind}): {state_of(info)}"
    facts = [
        ("does", info.description),
        ("when to use", info.when_to_use or ""),
        ("phases", ", ".join(info.phases or ())),
        ("path", info.path or ""),
        ("sha256", info.sha256 or ""),
    ]
    for name, value in facts:
        if value:
            yield from _wrapped(name, value, width)
    if info.args_schema is not None:
        yield from _arguments(info.args_schema, width)


def _wrapped(name: str, value: str, width: int) -> list[str]:
    indent = " " * (_NAME_CELLS + 1)
    lines = textwrap.wrap(one_line(value), max(20, width - len(indent)), break_long_words=False, break_on_hyphens=False)
    return [f"{pad(name, _NAME_CELLS)} {lines[0]}", *(indent + line for line in lines[1:])]


def _arguments(schema: JsonObject, width: int) -> Iterator[str]:
    """One for each property; a schema that is more than that as a whole."""
    properties = object_of(schema.get("properties"))
    if not properties:
        yield from _wrapped("arguments", msgspec.json.encode(schema).decode(), width)
        return
    yield "arguments"
    for name, given in properties.items():
        one = object_of(given)
        kind = one.get("type", "any")
        parts = [kind if isinstance(kind, str) else " or ".join(map(str, kind))]
        parts += ["required"] if name in schema.get("required", ()) else []
        about = one.get("description")
        yield from _wrapped("", f"{name} ({', '.join(parts)})" + (f": {about}" if about else ""), width)
