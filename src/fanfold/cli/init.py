"""`fanfold init`: a configuration to start from."""

from pathlib import Path

import click

from fanfold.cli.options import workspace_option
from fanfold.config.template import AGENT_ACL
from fanfold.regular_file import read_regular

CONFIG = Path("agent.acl")
_STATE = (".a3s/artifacts/", ".a3s/effect-log/", ".a3s/sessions/", ".a3s/workflow-runs/")
"""Not all of .a3s: definitions of agents and workflows belong into the repository."""


@click.command("init")
@workspace_option
def command() -> None:
    """Write agent.acl and have git ignore fanfold's state. What is there already stays as it is."""
    if CONFIG.exists():
        click.echo(f"{CONFIG} is there already")
    else:
        CONFIG.write_text(AGENT_ACL, encoding="utf-8")
        click.echo(f"wrote {CONFIG}")
    _ignore_state(Path(".gitignore"))
    click.echo("next: fanfold doctor")


def _ignore_state(path: Path) -> None:
    text = read_regular(path) if path.exists() else b""
    known = {line.strip() for line in text.splitlines()}
    missing = [line for line in _STATE if line.encode() not in known]
    if missing and b".a3s/" not in known:
        separator = b"" if not text or text.endswith(b"\n") else b"\n"
        path.write_bytes(text + separator + "".join(f"{line}\n" for line in missing).encode())
        click.echo(f"{path}: added {', '.join(missing)}")
