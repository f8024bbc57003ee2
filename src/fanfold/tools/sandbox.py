"""The sandbox of `bash`: bubblewrap around a command line, where the machine has it and lets it work.

Inside: no network, no other processes, no sockets of the host; the file system is read-only except the
workspace and a private /tmp; `.git`, `.a3s` and fanfold's configuration in the workspace are read-only too;
known places of credentials are empty. What the sandbox does not hide is any other file that the user can
read.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.workspace import PROTECTED_FILES, PROTECTED_FOLDERS, Workspace

_PROBE_SECONDS = 10.0
_ISOLATION = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL")
_SYSTEM = ((Path("/"), "--ro-bind"), (Path("/dev"), "--dev"), (Path("/proc"), "--proc"))
_EMPTY = (Path("/tmp"), Path("/run"))
"""/run also because a socket of the host (docker's, say) can be reached through a read-only mount."""
_CREDENTIALS = (
    ".ssh", ".aws", ".azure", ".docker", ".gnupg", ".kube", ".netrc", ".npmrc", ".pypirc", ".git-credentials",
    ".password-store", ".config/gcloud", ".config/gh", ".config/fanfold", ".local/share/keyrings",
)  # fmt: skip
_SECRET_NAME = re.compile(r"(?i)KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH(?!OR)|COOKIE|^BASH_ENV$|^ENV$")
_SECRET_VALUE = re.compile(r"://[^/\s]*:[^/\s]*@")
"""A URL with a password in it."""


@lru_cache(maxsize=8)
def sandbox_fault(bwrap: str = "bwrap") -> str | None:
    """Why there is no sandbox on this machine, None if there is one. Blocking; found out once per process."""
    program = shutil.which(bwrap)
    if program is None:
        return "bubblewrap (bwrap) is not installed"
    command = [program, *_ISOLATION, *_mount_options(dict(_SYSTEM)), "true"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    if done.returncode != 0:
        return f"bubblewrap does not work here: {done.stderr.decode('utf-8', 'replace').strip()[-300:]}"
    return None


def sandboxed(workspace: Workspace, argv: Sequence[str], *, home: Path, bwrap: str = "bwrap") -> list[str]:
    """The command line that runs `argv` in the sandbox, in the workspace's root.

    Raises:
        ToolRefusal: something in the workspace could not be protected.
    """
    root = workspace.root
    mounts = dict(_SYSTEM) | dict.fromkeys(_EMPTY, "--tmpfs")
    for place in filter(os.path.exists, (home / name for name in _CREDENTIALS)):
        real = Path(os.path.realpath(place))
        mounts[real] = "--tmpfs" if real.is_dir() else "--ro-bind /dev/null"
    mounts[root] = "--bind"
    for name in (*PROTECTED_FOLDERS, *PROTECTED_FILES):
        if (root / name).is_symlink():
            raise ToolRefusal(f"bash is refused: {name} is a link, which no mount can guard; put its target there")
        # Being a mount of its own, it can be neither written nor moved away to make room for another.
        if (root / name).exists():
            mounts[root / name] = "--ro-bind"
    return [bwrap, *_ISOLATION, *_mount_options(mounts), "--chdir", str(root), *argv]


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without what looks like a secret by its name or its value."""
    return {
        name: value
        for name, value in environment.items()
        if not _SECRET_NAME.search(name) and not _SECRET_VALUE.search(value)
    }


def _mount_options(mounts: Mapping[Path, str]) -> list[str]:
    """Options in an order in which no outer mount covers an inner one."""
    options: list[str] = []
    for place, kind in sorted(mounts.items(), key=lambda mount: mount[0].parts):
        if kind.endswith("bind"):
            options += [kind, str(place), str(place)]
        else:
            options += [*kind.split(), str(place)]
    return options
