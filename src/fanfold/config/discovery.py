"""Which configuration holds, and its settings."""

import os
from collections.abc import Mapping
from pathlib import Path

from fanfold.config.acl import parse_acl
from fanfold.config.problems import Problems
from fanfold.config.settings import read_settings
from fanfold.config.tree import MAX_DOCUMENT_BYTES, Place, Table
from fanfold.contracts.settings import Settings
from fanfold.errors import ConfigError
from fanfold.regular_file import read_regular

INLINE = "inline text"
_SUFFIXES = (".acl", ".toml")


def load(source: str | Path | None, *, start: Path, environ: Mapping[str, str]) -> Settings:
    """The settings of `source`: the path of an `.acl` or `.toml` file, or inline ACL text.

    None looks in this order: the file named by `FANFOLD_CONFIG`; `agent.acl` or `agent.toml` in `start`, then
    in each parent up to the root of its git checkout (outside of one: in `start` alone); `config.acl` or
    `config.toml` in `$XDG_CONFIG_HOME/fanfold` (default `~/.config/fanfold`); the built-in defaults.
    Relative paths count from `start`.

    Raises:
        ConfigError: no such file, not readable, or faults in it; `problems` lists all with file and line.
    """
    if isinstance(source, str) and _is_inline(source, start):
        return settings_of(source, ".acl", INLINE, environ)
    if source is not None:
        return _load_file(_named(start / source, "the config file {} does not exist"), str(source), environ)
    if named := environ.get("FANFOLD_CONFIG"):
        return _load_file(_named(start / named, "FANFOLD_CONFIG names {}, which does not exist"), named, environ)
    found = _discover(start, environ)
    if found is None:
        return read_settings(Table(Place("")), environ, Problems(), source=Settings().source)
    return _load_file(found, _shown(found, start), environ)


def _is_inline(source: str, start: Path) -> bool:
    if "\n" not in source and (os.path.lexists(start / source) or source.endswith(_SUFFIXES)):
        return False
    return any(mark in source for mark in "\n={")


def _named(path: Path, fault: str) -> Path:
    if not os.path.lexists(path):
        raise ConfigError(f"{fault.format(path.absolute())}; `fanfold init` writes an agent.acl")
    return path


def _discover(start: Path, environ: Mapping[str, str]) -> Path | None:
    for directory in _project_directories(start):
        if found := _one_of(directory, "agent"):
            return found
    home = environ.get("HOME") or environ.get("USERPROFILE")
    config_home = environ.get("XDG_CONFIG_HOME") or (os.path.join(home, ".config") if home else None)
    return _one_of(Path(config_home, "fanfold"), "config") if config_home else None


def _project_directories(start: Path) -> list[Path]:
    start = start.resolve()
    directories: list[Path] = []
    for directory in (start, *start.parents):
        directories.append(directory)
        if os.path.lexists(directory / ".git"):
            return directories
    # No checkout: a parent may be anybody's, such as a shared temporary directory.
    return [start]


def _one_of(directory: Path, name: str) -> Path | None:
    """`name`.acl or `name`.toml. A link that leads nowhere counts: reading it then says so."""
    candidates = [directory / f"{name}{suffix}" for suffix in _SUFFIXES]
    found = [path for path in candidates if os.path.lexists(path) and not path.is_dir()]
    if len(found) > 1:
        raise ConfigError(f"both {found[0]} and {found[1]} exist; keep one of them")
    return found[0] if found else None


def _shown(path: Path, start: Path) -> str:
    """Short inside `start`, whole elsewhere."""
    start = start.resolve()
    return str(path.relative_to(start) if path.is_relative_to(start) else path)


def _load_file(path: Path, shown: str, environ: Mapping[str, str]) -> Settings:
    suffix = path.suffix.lower()
    if path.is_dir():
        raise ConfigError(f"{shown} is a directory; name the config file in it")
    if suffix not in _SUFFIXES:
        raise ConfigError(f"{shown} must end in .acl or .toml, which tells its syntax (JSON is not accepted)")
    return settings_of(_text(path, shown), suffix, shown, environ)


def _text(path: Path, shown: str) -> str:
    try:
        return read_regular(path, MAX_DOCUMENT_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {shown}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{shown}:{line}: not UTF-8 text; save it as UTF-8") from error


def settings_of(text: str, suffix: str, shown: str, environ: Mapping[str, str]) -> Settings:
    """The settings of a text: ACL for `.acl`, TOML for `.toml`; `shown` names it in messages.

    Raises:
        ConfigError: with all faults of the text.
    """
    problems = Problems()
    if suffix == ".acl":
        tree = parse_acl(text, shown, problems)
    else:
        from fanfold.config.toml import parse_toml  # with tomllib: milliseconds that ACL files need not pay

        tree = parse_toml(text, shown, problems)
    settings = read_settings(tree or Table(Place(shown)), environ, problems, source=shown)
    problems.raise_if_any()
    return settings
