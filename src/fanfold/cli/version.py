"""`fanfold version`."""

import click

from fanfold import __version__


@click.command("version")
def command() -> None:
    """Print the version."""
    click.echo(__version__)
