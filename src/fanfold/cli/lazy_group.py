"""A click group that imports a command only when it is used, and not for the list in `--help`."""

import importlib
from collections.abc import Mapping

import click


class LazyGroup(click.Group):
    """`commands_by_name`: command name to (module that has it as `command`, one line for `--help`)."""

    def __init__(self, *args: object, commands_by_name: Mapping[str, tuple[str, str]], **attrs: object) -> None:
        super().__init__(*args, **attrs)  # type: ignore[arg-type]
        self._by_name = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._by_name:
            return None
        command: object = importlib.import_module(self._by_name[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._by_name.items()])
