"""`fanfold answer`: answer a question of a model."""

import sys

import click

from fanfold.cli.cells import one_line
from fanfold.cli.console import Console
from fanfold.cli.named_input import STDIN, read_stdin
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.settling import settle
from fanfold.control.waiting import Waiting


@click.command("answer")
@click.argument("id")
@click.argument("text")
@json_option
@workspace_option
@console_options
def command(*, console: Console, id: str, text: str, as_json: bool) -> None:
    """Answer the question ID of `fanfold inbox` with TEXT, or with the option of that number; `-` reads stdin.

    IDs as for approve.
    """
    given = read_stdin(sys.stdin.buffer).strip() if text == STDIN else text
    if not given.strip():
        raise click.UsageError("the answer is empty")
    settle(console, id, lambda waiting: chosen(waiting, given), "question", as_json=as_json)


def chosen(waiting: Waiting, text: str) -> str:
    """The answer that `text` stands for.

    Raises:
        click.UsageError: the question has options, and this is none of them.
    """
    options = waiting.options or []
    if text in options:
        return text
    if text.isdecimal() and 0 < int(text) <= len(options):
        return options[int(text) - 1]
    if options and waiting.allow_free_text is False:
        listed = "".join(f"\n  {number}. {one_line(option)}" for number, option in enumerate(options, 1))
        raise click.UsageError(f"'{waiting.id}' has to be answered with one of its options, or its number:{listed}")
    return text
