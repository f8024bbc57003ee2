"""What a run returned: on stdout, and in a file that is found writable before anything runs."""

import os
import stat
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from fanfold.cli.console import Console
from fanfold.cli.out_file import OutFile
from fanfold.contracts.codec import encode_json
from fanfold.contracts.events import event
from fanfold.contracts.record import JsonValue
from fanfold.contracts.workflow_runs import WorkflowResult
from fanfold.errors import UsageError

Output = Literal["json", "jsonl"] | None


def open_output(name: Path) -> OutFile:
    """The file that takes the result, after a trial whether it can be written.

    Raises:
        UsageError: nothing can be written there.
    """
    target = Path(os.path.realpath(name))
    try:
        if target.exists() and not target.is_file():
            raise UsageError(f"--output {name}: it is not a regular file")
        with tempfile.TemporaryFile(dir=target.parent, prefix=".fanfold-"):
            pass
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_mask()
    except OSError as error:
        place = "" if target.parent.is_dir() else f"{target.parent}: "
        raise UsageError(f"--output {name}: cannot be written there: {place}{error.strerror}") from error
    return OutFile(name, target, mode, "json")


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def value_text(value: JsonValue) -> str:
    """Text as it is, everything else as indented JSON; nothing for a run that returned nothing."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.format(encode_json(value)).decode()
    return text if text.endswith("\n") else f"{text}\n"


def put_result(console: Console, output: Output, result: WorkflowResult, file: OutFile | None) -> None:
    """Raises LogWriteError: the file took nothing; then stdout has it all the same."""
    text = value_text(result.value)
    try:
        if file is not None and result.status in ("completed", "completed_with_failures"):
            file.write_whole(text)
    finally:
        if output == "json":
            console.write_json({"schema": "fanfold/workflow-result/v1", **result.to_dict()})
        elif output == "jsonl":
            console.write_json(event("workflow_end", **result.to_dict()).to_dict())
        else:
            console.write(text)
