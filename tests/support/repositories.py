"""Git repositories as a person would have them, with nothing of this machine's own settings in them."""

import os
import subprocess
from pathlib import Path

PLAIN = {
    "PATH": os.environ["PATH"],
    "HOME": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2024-05-06T07:08:09Z",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_COMMITTER_DATE": "2024-05-06T07:08:09Z",
}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=PLAIN, capture_output=True, check=True)
    return os.fsdecode(done.stdout).strip()


def commit(folder: Path, files: dict[str, str], subject: str = "step") -> str:
    """Write `files` and commit all that there is; the commit's full name."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", subject)
    return git(folder, "rev-parse", "HEAD")


def new_repository(folder: Path, files: dict[str, str] | None = None) -> str:
    """A repository in `folder` with one commit; the commit's full name."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    return commit(folder, files or {"a.txt": "one\n", ".gitignore": "*.log\n"})


def branches(folder: Path) -> dict[str, str]:
    """Those of fanfold, with their commits."""
    lines = git(folder, "for-each-ref", "--format=%(refname:strip=2) %(objectname)", "refs/heads/fanfold").splitlines()
    return {name: at for name, _, at in (line.partition(" ") for line in lines)}


def shown(folder: Path, revision: str) -> str:
    return git(folder, "show", revision)
