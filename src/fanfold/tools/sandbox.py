"""The sandbox of `bash`: bubblewrap around a command line, where the machine has it and lets it work.

Inside: no network, no other processes, no sockets of the host; the file system is read-only except the
workspace and a private /tmp; what `guard` found in the workspace is read-only too; known places of credentials are
empty. What the sandbox does not hide is any other file that the user can read.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

_PROBE_SECONDS = 10.0
_ISOLATION = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL")
_SYSTEM = ((Path("/"), "--ro-bind"), (Path("/dev"), "--dev"), (Path("/proc"), "--proc"))
_EMPTY = (Path("/tmp"), Path("/run"))
"""/run also because a socket of the host (docker's, say) can be reached through a read-only mount."""
_CREDENTIALS = (
    ".ssh", ".aws", ".azure", ".docker", ".gnupg", ".kube", ".netrc", ".npmrc", ".pypirc", ".git-credentials",
    ".password-store", ".config/gcloud", ".config/gh", ".config/fanfold", ".local/share/keyrings",
)  # fmt: skip
_PLAIN_VARIABLES = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR",
    "TZ", "TMPDIR", "CI", "EDITOR", "PAGER", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "PYTHONPATH", "PYTHONUTF8",
    "PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "JAVA_HOME", "GOPATH",
    "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "NVM_DIR", "LD_LIBRARY_PATH", "PKG_CONFIG_PATH", "CC", "CXX", "CFLAGS",
    "CXXFLAGS", "LDFLAGS",
}  # fmt: skip
"""And `LC_*`. A list of what is passed on, for nobody can list the names of secrets."""
_SECRET_VALUE = re.compile(r"://[^/\s]*@")
"""A URL with a password or a token in it."""


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


def sandboxed(
    root: Path,
    argv: Sequence[str],
    *,
    home: Path,
    guarded: Iterable[Path] = (),
    writable: Iterable[Path] = (),
    bwrap: str = "bwrap",
) -> list[str]:
    """The command line that runs `argv` in the sandbox, in `root`, where `guarded` can only be read, but what lies in
    `writable`."""
    mounts = dict(_SYSTEM) | dict.fromkeys(_EMPTY, "--tmpfs")
    for place in filter(os.path.exists, (home / name for name in _CREDENTIALS)):
        real = Path(os.path.realpath(place))
        mounts[real] = "--tmpfs" if real.is_dir() else "--ro-bind /dev/null"
    hidden = mounts.keys() - {root, *root.parents}
    mounts[root] = "--bind"
    # Being a mount of its own, it can be neither written nor moved away to make room for another. One that lies in a
    # hidden folder must stay hidden.
    mounts |= {path: "--ro-bind" for path in guarded if hidden.isdisjoint(path.parents)}
    mounts |= dict.fromkeys(writable, "--bind")
    return [bwrap, *_ISOLATION, *_mount_options(mounts), "--chdir", str(root), *argv]


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of `environment` that commands commonly need and that holds no secret."""
    return {
        name: value
        for name, value in environment.items()
        if (name in _PLAIN_VARIABLES or name.startswith("LC_")) and not _SECRET_VALUE.search(value)
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
