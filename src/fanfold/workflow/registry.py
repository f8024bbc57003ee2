"""Registry: the workflows that one session can launch by name, and who vouches for them.

Of two with one name the later counts: shipped ones, files of the project, registered functions. Names that differ in
case only are one name, for some disks know no difference.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Protocol

import msgspec
from msgspec.structs import replace

from fanfold.contracts.policy import Decision
from fanfold.contracts.workflow_runs import WorkflowInfo
from fanfold.errors import WorkflowInputError
from fanfold.nearest import did_you_mean
from fanfold.workflow.scripts import Script, read_script, registered


class ScriptFile(Protocol):
    @property
    def path(self) -> str: ...

    @property
    def text(self) -> str | None: ...

    @property
    def problem(self) -> str | None:
        """Why it has no text."""
        ...


class ScriptFolder(Protocol):
    """The scripts of a project, and which of them a person has approved."""

    def files(self) -> Sequence[ScriptFile]:
        """Sorted by path; empty where there is no such folder."""
        ...

    def is_approved(self, path: str, sha256: str) -> bool: ...

    def approve(self, path: str, sha256: str) -> None:
        """Remember it, outside of the project: what lies in there cannot vouch for itself."""
        ...


class _Found(msgspec.Struct, frozen=True):
    info: WorkflowInfo
    script: Script | None
    code: str = "bad_script"
    """Of its problem, where it has no script."""


class Registry:
    def __init__(self, folder: ScriptFolder) -> None:
        self._folder = folder
        self._registered: dict[str, Script] = {}

    def register(self, meta: object, function: object) -> WorkflowInfo:
        """Raises WorkflowInputError: `bad_meta`, `bad_script`, or `bad_meta` for a name that is taken."""
        script = registered(meta, function)
        if script.meta.name.casefold() in self._registered:
            raise WorkflowInputError("bad_meta", f"a workflow named '{script.meta.name}' is registered already")
        self._registered[script.meta.name.casefold()] = script
        return _info(script)

    def add_file(self, path: str, text: str) -> WorkflowInfo:
        """A script file from outside of the project: known by its name from now on, and approved like any other file.

        Raises:
            WorkflowInputError: `bad_script`, `bad_meta`.
        """
        script = read_script(text, "file", path)
        self._registered[script.meta.name.casefold()] = script
        return self.info(script.meta.name)

    def all(self) -> list[WorkflowInfo]:
        """Sorted by name, those with a problem too."""
        return [found.info for _, found in sorted(self._found().items())]

    def script(self, name: object) -> Script:
        """Raises WorkflowInputError: `unknown_workflow`, or what is wrong with it."""
        found = self._known(name)
        if found.script is None:
            raise WorkflowInputError(found.code, f"workflow '{found.info.name}': {found.info.problem}")
        return found.script

    def info(self, name: object) -> WorkflowInfo:
        return self._known(name).info

    def approve(self, name: str) -> WorkflowInfo:
        """Vouch for the text that a project file has now."""
        script = self.script(name)
        if script.kind == "file" and script.path is not None and script.sha256 is not None:
            self._folder.approve(script.path, script.sha256)
        return self.info(name)

    def needs_approval(self, script: Script) -> bool:
        if script.kind != "file" or script.path is None or script.sha256 is None:
            return False
        return not self._folder.is_approved(script.path, script.sha256)

    def _known(self, name: object) -> _Found:
        found = self._found()
        known = found.get(name.casefold()) if isinstance(name, str) else None
        if known is None or known.info.name != name:
            names = [each.info.name for each in found.values()]
            hint = did_you_mean(name if isinstance(name, str) else "", names)
            raise WorkflowInputError("unknown_workflow", f"there is no workflow {name!r}{hint}")
        return known

    def _found(self) -> dict[str, _Found]:
        found = {name.casefold(): _Found(_info(script), script) for name, script in shipped_scripts().items()}
        taken: dict[str, str] = {}
        for file in self._folder.files():
            read = self._read(file)
            key = read.info.name.casefold()
            if key in taken:
                problem = f"{taken[key]} has the same name"
                read = _Found(replace(read.info, name=file.path, problem=problem), None)
                key = file.path.casefold()
            taken[key] = file.path
            found[key] = read
        return found | {name: self._told(script) for name, script in self._registered.items()}

    def _told(self, script: Script) -> _Found:
        return _Found(replace(_info(script), needs_approval=self.needs_approval(script)), script)

    def _read(self, file: ScriptFile) -> _Found:
        try:
            if file.text is None:
                raise WorkflowInputError("bad_script", file.problem or "it cannot be read")
            script = read_script(file.text, "file", file.path)
        except WorkflowInputError as error:
            problem = str(error).removeprefix(file.path).lstrip(", ")  # it stands beside its path
            return _Found(WorkflowInfo(name=file.path, kind="file", path=file.path, problem=problem), None, error.code)
        return self._told(script)


def _info(script: Script) -> WorkflowInfo:
    meta = script.meta
    return WorkflowInfo(
        name=meta.name,
        description=meta.description,
        phases=meta.phases,
        when_to_use=meta.when_to_use,
        args_schema=meta.args_schema,
        kind=script.kind,
        path=script.path,
        sha256=script.sha256,
    )


@cache
def shipped_scripts() -> Mapping[str, Script]:
    """Those that come with fanfold, by name."""
    folder = resources.files("fanfold.workflow").joinpath("shipped")
    if not folder.is_dir():
        return {}
    texts = {each.name: each.read_text("utf-8") for each in folder.iterdir() if each.name.endswith(".py")}
    scripts = [read_script(text, "shipped") for name, text in sorted(texts.items()) if not name.startswith("__")]
    return {script.meta.name: script for script in scripts}


LaunchGate = Callable[[str], Decision]
"""The session's permissions, for launches by name (`Workflow(name)`; `inline` for a script of no name)."""


def require_admission(registry: Registry, gate: LaunchGate, script: Script, *, was_asked: bool) -> None:
    """The one gate of all launches by name, whoever asks: the tool, the host, or another workflow (D11).

    `was_asked`: whoever may say yes to an "ask" of the permissions has done so.

    Raises:
        WorkflowInputError: `denied`, `needs_approval`.
    """
    require_permission(gate, script.meta.name, was_asked=was_asked)
    if registry.needs_approval(script):
        raise WorkflowInputError(
            "needs_approval",
            f"workflow '{script.meta.name}' ({script.path}) is new or has changed since it was approved; look at it, "
            f"then approve it: fanfold workflow approve {script.meta.name}",
        )


def require_permission(gate: LaunchGate, name: str, *, was_asked: bool) -> None:
    """Raises WorkflowInputError, `denied` or `needs_approval`."""
    decision = gate(name)
    if decision == "deny":
        raise WorkflowInputError("denied", f"the permission policy denies Workflow({name})")
    if decision == "ask" and not was_asked:
        raise WorkflowInputError(
            "needs_approval", f"the permission policy asks before Workflow({name}), and nobody can be asked here"
        )
