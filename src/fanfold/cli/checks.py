"""What `doctor` looks at, one function for each thing on the machine."""

import ctypes
import importlib.metadata
import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from fanfold import __version__
from fanfold.config.discovery import load
from fanfold.contracts.settings import ProviderSettings, Secret, Settings
from fanfold.errors import ConfigError, MissingExtraError
from fanfold.providers.gguf import DEFAULT_MODEL_ID, find_model
from fanfold.tools.sandbox import sandbox_fault

_RUNTIME = "xllamacpp"
_OPENMP = "libgomp.so.1"
_ABLE = (
    "a stand-in that names what a short program file is about; it invents details, and does not know facts, judge, "
    "use tools, review code or work in several steps"
)
_SHOWN_KEY_CHARS = 4
_SHORTEST_SHOWN_KEY = 20
"""Of a shorter key even four characters would be too much."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: Literal["ok", "missing", "bad"]
    """`missing`: something optional is not there. `bad`: fanfold does not work as configured."""
    detail: str


def all_checks(config: Path | None, environ: Mapping[str, str]) -> Iterator[Check]:
    yield Check("fanfold", "ok", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    yield from config_checks(config, environ)
    yield from local_model_checks()
    yield sandbox_check()
    yield _program("rg", "search uses it", "search reads the files itself, more slowly")
    inline = "inline workflow scripts"
    yield _package(
        "pydantic_monty", f"runs {inline}", f"{inline} are refused; pip install '.[sandbox]' in the checkout"
    )
    yield _package("rich", "live view of fan-outs", "fan-outs print plain lines; pip install '.[cli]' in the checkout")


def config_checks(config: Path | None, environ: Mapping[str, str]) -> Iterator[Check]:
    try:
        settings = load(config, start=Path.cwd(), environ=environ)
    except ConfigError as error:
        yield from (Check("config", "bad", problem) for problem in error.problems)
        return
    yield Check("config", "ok", settings.source)
    yield _default_model(settings)
    yield from (_provider(provider) for provider in settings.providers.values())


def _default_model(settings: Settings) -> Check:
    name = settings.default_model
    provider = settings.providers.get(name.partition("/")[0])
    if provider is not None and provider.api_key is not None and not provider.api_key.value:
        return Check("default model", "bad", f"{name} needs a key, and {provider.api_key.source} is not set")
    return Check("default model", "ok", name)


def _provider(provider: ProviderSettings) -> Check:
    parts = [provider.kind if provider.kind != provider.name else "", shown_url(provider.base_url)]
    key = provider.api_key
    parts.append("no key needed" if key is None else shown_key(key))
    has_key = key is None or bool(key.value)
    return Check(f"provider {provider.name}", "ok" if has_key else "missing", ", ".join(filter(None, parts)))


def shown_key(key: Secret) -> str:
    """The key's end and its source, never the key."""
    if not key.value:
        return f"key not set ({key.source})"
    end = key.value[-_SHOWN_KEY_CHARS:] if len(key.value) >= _SHORTEST_SHOWN_KEY else ""
    return f"key ***{end} ({key.source})"


def shown_url(url: str | None) -> str:
    """The URL without a user or password."""
    if url is None:
        return ""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def local_model_checks() -> Iterator[Check]:
    """The runtime of local models, the system library that it needs, and the embedded model's file."""
    try:
        yield Check("local model", "ok", f"{find_model(DEFAULT_MODEL_ID).path}; {_ABLE}")
    except (MissingExtraError, ConfigError) as error:
        yield Check("local model", "missing", str(error))
    is_there = importlib.util.find_spec(_RUNTIME) is not None
    if not is_there:
        yield Check("local runtime", "missing", f"{_RUNTIME} is not installed: pip install '.[local]' in the checkout")
    elif not _can_load(_OPENMP):
        yield Check("local runtime", "missing", f"{_RUNTIME} needs {_OPENMP}: apt-get install libgomp1")
    else:
        yield Check("local runtime", "ok", f"{_RUNTIME} {importlib.metadata.version(_RUNTIME)}")


def _can_load(library: str) -> bool:
    """Only Linux has to be asked: elsewhere the runtime brings what it needs."""
    if sys.platform != "linux":
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def sandbox_check() -> Check:
    fault = sandbox_fault()
    if fault is None:
        return Check("sandbox", "ok", "bubblewrap: bash has no network and writes only in the workspace")
    return Check("sandbox", "missing", f"{fault}; bash refuses to run unless allow_unsandboxed_bash = true")


def _program(name: str, with_it: str, without: str) -> Check:
    found = shutil.which(name)
    return Check(name, "ok", f"{found}: {with_it}") if found else Check(name, "missing", without)


def _package(name: str, with_it: str, without: str) -> Check:
    is_there = importlib.util.find_spec(name) is not None
    return Check(name, "ok", with_it) if is_there else Check(name, "missing", without)
