"""`fanfold workflow validate`."""

import ast
import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from fanfold.cli.console import Console
from fanfold.cli.exit_codes import ExitCode
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.workflow_hazards import Finding, find_hazards, finding_line
from fanfold.cli.workflow_named import find_info, open_project, path_of, read_script_text
from fanfold.cli.workflow_refusals import refusals
from fanfold.errors import WorkflowInputError
from fanfold.kernel.counted import counted
from fanfold.workflow.sandbox import check_inline
from fanfold.workflow.scripts import read_script

_LINE = re.compile(r"\bline (\d+)")
_PLACE = re.compile(r"^(the script, )?line \d+: |(?<=is no Python: )line \d+: ")
"""Told beside what is said of it."""
_CANNOT_RUN = "the script cannot run: "
_NEXT_LINE = re.compile(r"; (?=line \d+: |and \d+ more$)")
"""Between the faults that the sandbox finds, each with its line."""


@click.command("validate")
@click.argument("name", metavar="NAME|PATH.py")
@click.option("--inline", is_flag=True, help="Check it as a script that is to run in the sandbox.")
@json_option
@workspace_option
@console_options
@click.pass_context
def command(ctx: click.Context, *, console: Console, name: str, inline: bool, as_json: bool) -> None:
    """Read a script without running any of it, and say what is wrong with it, line by line.

    Errors are what no run could do, or what would make a resumed run go astray: exit code 1. Warnings are what may
    differ from run to run, such as the clock.
    """
    with refusals():
        label, text = _text_of(name)
        found = asyncio.run(check(text, is_inline=inline))
    errors = sum(each.severity == "error" for each in found)
    if as_json:
        document = {"schema": "fanfold/workflow-check/v1", "path": label, "is_valid": not errors}
        console.write_json({**document, "findings": [each.to_dict() for each in found]})
    else:
        for each in found:
            console.write(f"{finding_line(label, each)}\n")
        console.say(f"{counted(errors, 'error')}, {counted(len(found) - errors, 'warning')}")
    if errors:
        ctx.exit(ExitCode.FAILED)


def _text_of(name: str) -> tuple[str, str]:
    """(what to call it, its text). Raises NotThereError, UsageError."""
    project = open_project()
    path = path_of(name, project)
    if path is None:
        info = find_info(name, project)
        if info.path is None:
            return info.name, project.registry.script(name).text or ""
        path = Path(info.path)
    return str(path), read_script_text(path)


async def check(text: str, *, is_inline: bool) -> list[Finding]:
    """What is wrong with a script, by line."""
    phases: Sequence[str] | None = None
    refused: list[Finding] = []
    try:
        phases = read_script(text, "inline" if is_inline else "file").meta.phases
        if is_inline:
            await check_inline(text)
    except WorkflowInputError as error:
        refused = list(_refusals(error, text))
    if not _is_python(text):
        return refused
    found = _hazards(text, phases, is_inline=is_inline)
    told = {each.line for each in found if each.severity == "error"}  # in better words
    return sorted([*(each for each in refused if each.line not in told), *found], key=lambda each: each.line or 0)


def _refusals(error: WorkflowInputError, text: str) -> Iterator[Finding]:
    """One for each line that the error names."""
    for part in _NEXT_LINE.split(str(error).removeprefix(_CANNOT_RUN)):
        line = _line_of(part, error.code, text)
        yield Finding(line=line, severity="error", code=error.code, message=_PLACE.sub("", part))


def _hazards(text: str, phases: Sequence[str] | None, *, is_inline: bool) -> list[Finding]:
    """What may differ from run to run is fixed in the sandbox, or is not there."""
    return [each for each in find_hazards(text, phases) if not is_inline or each.severity == "error"]


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _line_of(reason: str, code: str, text: str) -> int | None:
    """Where it is wrong: as the reason says, else at its META when that is what it is about."""
    named = _LINE.search(reason)
    if named is not None:
        return int(named[1])
    if code != "bad_meta":
        return None
    for each in ast.parse(text).body:
        if isinstance(each, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "META" for target in each.targets
        ):
            return each.lineno
    return None
