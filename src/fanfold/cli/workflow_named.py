"""The workflow that a person names: one that can be launched by its name, or a script file by its path."""

import os
from pathlib import Path

import msgspec

from fanfold.cli.endings import NotThereError
from fanfold.cli.runs_here import listing
from fanfold.config.workflow_files import DIRECTORY, MAX_BYTES, WorkflowFolder
from fanfold.contracts.workflow_runs import WorkflowInfo
from fanfold.errors import UsageError
from fanfold.regular_file import read_regular
from fanfold.workflow.registry import Registry
from fanfold.workflow.scripts import Script, read_script

_SUFFIX = ".py"


class Project(msgspec.Struct, frozen=True):
    """The workflows that there are without a session, and who vouches for the files among them."""

    folder: WorkflowFolder
    registry: Registry

    def names(self) -> list[str]:
        return [info.name for info in self.registry.all()]

    def vouch(self, script: Script) -> None:
        """For the very text that was read, whatever stands in the file by now. Raises ConfigError."""
        if script.path is not None and script.sha256 is not None:
            self.folder.approve(script.path, script.sha256)


def open_project() -> Project:
    """That of the current directory."""
    folder = WorkflowFolder(Path.cwd(), os.environ)
    return Project(folder, Registry(folder))


def find_script(typed: str, project: Project) -> Script:
    """The script of that name, or in that file.

    Raises:
        NotThereError: there is no such file.
        WorkflowInputError: `unknown_workflow`, or what is wrong with the script.
        UsageError: the file cannot be read.
    """
    path = path_of(typed, project)
    return project.registry.script(typed) if path is None else script_at(path, project)


def script_at(path: Path, project: Project) -> Script:
    """A file of the project's folder is the workflow that it is there, any other one is known by its path."""
    name = name_at(path, project)
    return (
        read_script(read_script_text(path), "file", os.path.realpath(path))
        if name is None
        else project.registry.script(name)
    )


def name_at(path: Path, project: Project) -> str | None:
    """By which the project has the script in that file."""
    wanted = os.path.realpath(path)
    of_files = {os.path.realpath(info.path): info.name for info in project.registry.all() if info.path is not None}
    return of_files.get(wanted)


def find_info(typed: str, project: Project) -> WorkflowInfo:
    """As `find_script`; a script of the project that cannot be run has its problem here."""
    path = path_of(typed, project)
    name = typed if path is None else name_at(path, project)
    if name is not None:
        return project.registry.info(name)
    script = find_script(typed, project)
    return WorkflowInfo(
        **msgspec.structs.asdict(script.meta),
        kind=script.kind,
        path=script.path,
        sha256=script.sha256,
        needs_approval=project.registry.needs_approval(script),
    )


def is_in_project(script: Script, project: Project) -> bool:
    """Every session here can launch it by its name."""
    return script.kind == "shipped" or (script.path is not None and name_at(Path(script.path), project) is not None)


def path_of(typed: str, project: Project) -> Path | None:
    """The file that `typed` means; None when it is a name.

    Raises:
        NotThereError: there is no such file.
    """
    if typed in project.names():
        return None
    if not typed.endswith(_SUFFIX) and Path(typed).name == typed:
        broken = DIRECTORY / f"{typed}{_SUFFIX}"  # its name cannot be read from it
        return broken if broken.is_file() else None
    if not os.path.lexists(typed):
        raise NotThereError(f"there is neither a file nor a workflow '{typed}' here").with_hint(
            listing("fanfold workflow list")
        )
    return Path(typed)


def read_script_text(path: Path) -> str:
    """Raises UsageError: it cannot be read, is too large, or is no UTF-8 text."""
    try:
        return read_regular(path, MAX_BYTES, may_be_pipe=True).decode()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: not UTF-8 text") from error
