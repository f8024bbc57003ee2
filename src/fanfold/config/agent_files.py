"""Agent definitions in files: the directories they are found in, and what each file holds (notes 7.1 and 7.2)."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from fanfold.config.agent_text import AnyAgent, parse_agent
from fanfold.errors import ConfigError
from fanfold.foreign import logger
from fanfold.regular_file import read_regular

MAX_FILE_BYTES = 256 * 1024
MAX_FILES = 1_000
"""In one directory; who points at a whole disk is told so."""
_SUFFIXES = (".md", ".yaml", ".yml")
_PLACES = (".claude", ".a3s")


class FileProblem(msgspec.Struct, frozen=True):
    path: str
    text: str
    """`file:line:column: ...`, as far as the place is known."""
    is_skipped: bool
    """The file gave no agent; False: a part of it is taken otherwise than it was written."""

    def __str__(self) -> str:
        return self.text


class AgentFiles(msgspec.Struct, frozen=True):
    """What some directories hold. Whatever is wrong with one file costs no other one."""

    agents: Mapping[str, AnyAgent]
    """By name; of two with one name the later. Files with a `kind` give workers."""
    sources: Mapping[str, str]
    """Their files, by name."""
    problems: tuple[FileProblem, ...]


def standard_directories(workspace: Path, environ: Mapping[str, str]) -> list[Path]:
    """Where a workspace has its agents, in the order in which a later one wins; those that exist."""
    home = environ.get("HOME") or environ.get("USERPROFILE")
    roots = ([home] if home else []) + [str(workspace)]
    # Text and not paths, for each session that is opened asks, and there are seldom any.
    found = [each for root in roots for place in _PLACES if os.path.isdir(each := f"{root}/{place}/agents")]
    return list({path.resolve(): path for path in map(Path, found)}.values())


def read_agents(directories: Sequence[Path], *, tool_names: Collection[str] = ()) -> AgentFiles:
    """The agents in all `.md`, `.yaml` and `.yml` files below `directories`, in a fixed order.

    Links that lead out of their directory are not followed. Each problem is also logged as a warning.

    Args:
        tool_names: tools that exist beside the built-in ones, for nobody to be warned of them.
    """
    agents: dict[str, AnyAgent] = {}
    sources: dict[str, str] = {}
    problems: list[FileProblem] = []
    for directory in directories:
        here: dict[str, str] = {}
        for path in _files(directory, problems):
            agent = _read(path, tool_names, problems)
            if agent is None:
                continue
            if (before := here.get(agent.name)) is not None:
                text = f"{path}: it replaces agent '{agent.name}' of {before}"
                problems.append(FileProblem(str(path), text, is_skipped=False))
            agents[agent.name], sources[agent.name] = agent, str(path)
            here[agent.name] = str(path)
    for problem in problems:
        logger.warning("%s%s", problem.text, " (skipped)" if problem.is_skipped else "")
    return AgentFiles(agents, sources, tuple(problems))


def _files(directory: Path, problems: list[FileProblem]) -> Iterator[Path]:
    """Sorted by their names from the directory on."""
    if not directory.is_dir():
        what = "it is not a directory" if directory.exists() else "there is no such directory"
        problems.append(FileProblem(str(directory), f"{directory}: {what}", is_skipped=True))
        return
    found = sorted(_walk(directory, problems), key=lambda path: path.relative_to(directory).as_posix())
    if len(found) > MAX_FILES:
        text = f"{directory}: more than {MAX_FILES:,} files; the first {MAX_FILES:,} are read"
        problems.append(FileProblem(str(directory), text, is_skipped=True))
    yield from found[:MAX_FILES]


def _walk(directory: Path, problems: list[FileProblem]) -> Iterator[Path]:
    root = directory.resolve()

    def tell(error: OSError) -> None:
        path = str(error.filename or directory)
        problems.append(FileProblem(path, f"{path}: {error.strerror or error}", is_skipped=True))

    for folder, folders, names in os.walk(directory, onerror=tell):
        links = [Path(folder, name) for name in folders if os.path.islink(os.path.join(folder, name))]
        files = [Path(folder, name) for name in names if name.lower().endswith(_SUFFIXES)]
        for path in links + files:
            fault = _link_fault(path, root, directory)
            if fault is not None:
                problems.append(FileProblem(str(path), f"{path}: {fault}", is_skipped=True))
            elif not path.is_dir():  # what is behind a link to a folder in here is found in that folder
                yield path


def _link_fault(path: Path, root: Path, directory: Path) -> str | None:
    try:
        return None if path.resolve().is_relative_to(root) else f"the link leads out of {directory}"
    except (RuntimeError, OSError):  # what a circle of links raises depends on the version of Python
        return "the link leads in a circle"


def _read(path: Path, tool_names: Collection[str], problems: list[FileProblem]) -> AnyAgent | None:
    shown = str(path)
    try:
        text = read_regular(Path(os.path.realpath(path)), MAX_FILE_BYTES).decode("utf-8-sig").replace("\r\n", "\n")
        parsed = parse_agent(text, shown, is_markdown=path.suffix.lower() == ".md", tool_names=tool_names)
    except OSError as error:
        problems.append(FileProblem(shown, f"{shown}: {error.strerror or error}", is_skipped=True))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problems.append(FileProblem(shown, f"{shown}:{line}: not UTF-8 text; save it as UTF-8", is_skipped=True))
    except ConfigError as error:
        problems += (FileProblem(shown, text, is_skipped=True) for text in error.problems)
    else:
        problems += (FileProblem(shown, text, is_skipped=False) for text in parsed.warnings)
        return parsed.agent
    return None
