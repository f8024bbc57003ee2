"""Console: what may be done with this terminal (colour, animation, questions), decided once per command."""

import logging
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from fanfold.cli.safe_text import escaped, printable
from fanfold.contracts.codec import encode_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Data goes to `out`, everything meant for people to `err`."""

    out: TextIO
    err: TextIO
    has_colour: bool
    """Whether `err` may be coloured."""
    is_animated: bool
    """Whether `err` may be redrawn in place."""
    may_ask: bool
    is_quiet: bool
    out_width: int | None
    """Columns of `out`; None when it is not a terminal and lines need not be cut."""

    def say(self, text: str) -> None:
        """Tell the user, unless they asked for quiet."""
        if not self.is_quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Tell the user even when quiet."""
        print(printable(text), file=self.err, flush=True)

    def write(self, text: str) -> None:
        """Put data on stdout at once; what a model wrote cannot steer the terminal there."""
        self.out.write(printable(text) if self.out.isatty() else text)
        self.out.flush()

    def write_json(self, value: object) -> None:
        """Put one JSON value on stdout, on a line of its own."""
        self.out.write(escaped(encode_json(value).decode()) + "\n")
        self.out.flush()


def open_console(
    *,
    no_color: bool = False,
    quiet: bool = False,
    no_input: bool = False,
    environ: Mapping[str, str] = os.environ,
    streams: tuple[TextIO, TextIO, TextIO] | None = None,
) -> Console:
    """The console of this process; `streams` (stdin, stdout, stderr) where they are not its own."""
    stdin, out, err = streams or (sys.stdin, sys.stdout, sys.stderr)
    is_dumb = environ.get("TERM") == "dumb"
    is_live = err.isatty() and not is_dumb and not environ.get("CI")
    is_forced = any(environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE"))
    return Console(
        out=out,
        err=err,
        has_colour=not (no_color or environ.get("NO_COLOR")) and (is_forced or (err.isatty() and not is_dumb)),
        is_animated=is_live and not quiet,
        may_ask=is_live and stdin.isatty() and not no_input,
        is_quiet=quiet,
        out_width=shutil.get_terminal_size().columns if out.isatty() else None,
    )


class _WarningsToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Not the console's `err`: while the live view is up, `sys.stderr` is what prints above it.
        print(printable(record.getMessage()), file=sys.stderr)


def show_warnings() -> None:
    """Print what the library logs as warnings, safe for a terminal."""
    logging.getLogger("fanfold").handlers = [_WarningsToStderr(logging.WARNING)]
