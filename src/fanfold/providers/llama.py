"""One llama.cpp server per model file and process: it decodes several requests at once, on threads that we own.

Facts about `xllamacpp` that shape this file, each seen in a run:

- `Server(...)` holds the interpreter lock while it loads (0.3 to 0.8 s for the embedded model).
- A server that is destroyed before its own loop has begun deadlocks, so it first answers a word of ours.
- The process crashes when it ends while a daemon thread generates, so the threads are no daemons; they live only
  while there is work and leave it when the main thread has ended.
- It always listens on a port: on the loopback interface, under a key that nobody knows.
"""

import atexit
import importlib
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Protocol

from fanfold.contracts.record import JsonObject
from fanfold.errors import ConfigError, LifecycleError, MissingExtraError
from fanfold.providers.gguf import ModelFile, cache_folder, verify

BATCH_TOKENS = 128
"""Prompt tokens per step. A cancelled request ends between two steps, so this bounds how long it still works."""
MOST_THREADS = 4
"""Of CPU, unless the settings say more: small models gain nothing beyond."""

Hear = Callable[[bytes], None]


class Runtime(Protocol):
    """What we use of the module `xllamacpp`, which has no type hints."""

    def CommonParams(self) -> Any: ...

    def Server(self, params: Any) -> Any: ...

    def json_schema_to_grammar(self, schema: JsonObject) -> str: ...


def load_runtime(load: Callable[[str], Any] = importlib.import_module) -> Runtime:
    """The module `xllamacpp`.

    Raises:
        MissingExtraError: it, or the OpenMP library of the system that it needs, is not installed.
    """
    # Two OpenMP threads that wait by spinning collapse when another process wants their core (1 token/s instead of
    # 20). The library reads this once, when it is loaded, so neither children nor later code see the change.
    is_ours = os.environ.setdefault("OMP_WAIT_POLICY", "passive") == "passive"
    try:
        runtime: Runtime = load("xllamacpp")
        return runtime
    except ImportError as error:
        if "libgomp" in str(error):
            raise MissingExtraError(
                feature="the system library libgomp.so.1, which xllamacpp needs,",
                install="apt-get install libgomp1 (Debian, Ubuntu) or dnf install libgomp (Fedora)",
            ) from error
        raise MissingExtraError(
            feature="the runtime of local models (xllamacpp)",
            install="pip install '.[local]' in the checkout",
            reason=str(error),
        ) from error
    finally:
        if is_ours:
            del os.environ["OMP_WAIT_POLICY"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Two clients with the same shape share a server."""

    file: ModelFile
    slots: int
    context_tokens: int
    """Of one slot."""
    threads: int


@dataclass(slots=True, eq=False)
class Job:
    """One request. `hear` gets each chunk, `done` the end, both on a worker's thread; `done` exactly once."""

    body: bytes
    hear: Hear
    done: Callable[[Exception | None], None]
    is_cancelled: bool = False


@dataclass(slots=True, eq=False)
class Llama:
    """A server that loads with its first job and goes with `close`."""

    runtime: Runtime
    shape: Shape
    users: int = 0
    _server: Any = None
    _loading: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards the four below."""
    _waiting: deque[Job] = field(default_factory=deque[Job])
    _running: set[Job] = field(default_factory=set[Job])
    _workers: set[threading.Thread] = field(default_factory=set[threading.Thread])
    _is_closed: bool = False

    def submit(self, job: Job) -> None:
        with self._lock:
            if self._is_closed:
                raise LifecycleError("the local model is closed")
            self._waiting.append(job)
            if len(self._workers) < self.shape.slots:
                worker = threading.Thread(target=self._work, name=f"fanfold-llama-{len(self._workers)}")
                worker.start()
                self._workers.add(worker)

    def close(self) -> None:
        """Cancel everything, wait for the workers (at most one step of the model), then free the memory."""
        with self._lock:
            self._is_closed = True
            for job in (*self._waiting, *self._running):
                job.is_cancelled = True
            workers = tuple(self._workers)
        for worker in workers:
            worker.join()
        self._server = None
        atexit.unregister(self.close)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            error = self._perform(job)
            with self._lock:
                self._running.discard(job)
            job.done(error)

    def _next(self) -> Job | None:
        with self._lock:
            if not self._waiting:
                self._workers.discard(threading.current_thread())
                return None
            job = self._waiting.popleft()
            self._running.add(job)
            return job

    def _perform(self, job: Job) -> Exception | None:
        errors: list[Exception] = []

        def hear(chunk: bytes) -> bool:
            if not _must_stop(job):
                try:
                    job.hear(chunk)
                except Exception as error:  # noqa: BLE001  the native caller would swallow it
                    errors.append(error)
            return _must_stop(job) or bool(errors)

        try:
            if not _must_stop(job):
                self._loaded().handle_chat_completions(job.body, hear)
        except Exception as error:  # noqa: BLE001  from native code, of any kind: for the caller, not the worker
            errors.append(error)
        if _must_stop(job):
            return LifecycleError("the local model was closed while it answered")
        return errors[0] if errors else None

    def _loaded(self) -> Any:
        with self._loading:
            if self._server is None:
                verify(self.shape.file, cache=cache_folder())
                server = self._load()
                server.handle_chat_completions(_FIRST_WORD, _ignore)
                # Runs after the interpreter has joined our threads, before it takes the modules apart.
                atexit.register(self.close)
                self._server = server
            return self._server

    def _load(self) -> Any:
        shape, params = self.shape, self.runtime.CommonParams()
        params.model.path = str(shape.file.path)
        params.verbosity = 0  # else 40 lines on stderr, past sys.stderr
        params.n_parallel, params.n_ctx = shape.slots, shape.slots * shape.context_tokens
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.warmup = params.fit_params = False  # work under the interpreter lock that we do ourselves, or not
        params.cache_ram_mib = 0  # else each finished prompt is kept, up to 8 GiB
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads, cpu.poll = shape.threads, 0
        params.hostnames, params.port, params.n_threads_http = ["127.0.0.1"], 0, 1
        params.api_keys, params.cors_origins = [token_hex(16)], "http://127.0.0.1"
        params.ui = params.endpoint_props = params.endpoint_slots = False
        try:
            return self.runtime.Server(params)
        except RuntimeError as error:
            raise ConfigError(f"llama.cpp cannot load {shape.file.path}: {error}") from error


_FIRST_WORD = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}'


def _ignore(chunk: bytes) -> None:
    del chunk


def _must_stop(job: Job) -> bool:
    return job.is_cancelled or not threading.main_thread().is_alive()


# ---- the process's servers ---------------------------------------------------------------------------------

_servers: dict[Shape, Llama] = {}
_servers_lock = threading.Lock()


def acquire(runtime: Runtime, shape: Shape) -> Llama:
    """The process's server of this shape; each `acquire` wants one `release`."""
    with _servers_lock:
        server = _servers.setdefault(shape, Llama(runtime, shape))
        server.users += 1
        return server


def release(server: Llama) -> None:
    """Blocks until the server is gone when nobody else uses it."""
    with _servers_lock:
        server.users -= 1
        if server.users:
            return
        del _servers[server.shape]
    server.close()


def default_threads() -> int:
    return min(MOST_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
