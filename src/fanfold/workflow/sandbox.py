"""The sandbox of inline scripts: text that a model wrote runs in a process without files, network or environment.

The script runs behind a prelude (`prelude.py.txt`) that gives it the `ctx` of `context.py`, with the same places. What
that asks of the host crosses as JSON text, and only from the prelude's own calls: nothing else that the script hands
over is even looked at here, for one object that names another a million times would fill this process, not that one.
"""

import keyword
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from fanfold.contracts.codec import decode_json, encode_json
from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.errors import FanfoldError, SandboxError, ScriptError, WorkflowInputError
from fanfold.workflow.lanes import Lane
from fanfold.workflow.sandbox_calls import NEEDS_NO_ANSWER, TAKES_TIME, Asked, SandboxCalls
from fanfold.workflow.sandbox_process import SandboxProcess, Session
from fanfold.workflow.sandbox_text import checkable_text, packaged, runnable_text
from fanfold.workflow.script_host import ScriptHost

_PRELUDE_FILE, _SCRIPT_FILE = "<python-input-0>", "<python-input-1>"
"""What the sandbox calls what it was fed first and second."""
_LIMITS_TOLD = (
    "TimeoutError: turn time limit exceeded",
    "TimeoutError: feed time limit exceeded",
    "MemoryError: memory limit exceeded",
    "MemoryError: the worker exceeded its memory limit",
    "RuntimeError: suspension limit",
)
"""How the sandbox's messages begin when one of its limits has ended the script."""
_LINE_COSTS = 64
"""Counted for each line of output besides its text."""
_MAX_MESSAGE = 4_000
_MAX_FRAMES = 20
_MAX_FAULTS = 20
_STOP = "raise RuntimeError"
_TYPE_FAULT = "__fanfold_fault__: int = None"
_OF_ERROR = re.compile(r"Object of type `\w*(Error|Exception)` has no attribute ")
_DIAGNOSTIC = re.compile(r"^script\.py:(\d+):\d+: error\[[\w-]+\] (.*)$", re.MULTILINE)


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What passes one of them ends the script with a `SandboxError`. Time counts only while code of the script runs."""

    turn_seconds: float = 10.0
    """Between two calls of its host."""
    total_seconds: float = 300.0
    memory_bytes: int = 268_435_456
    """Of its objects."""
    host_calls: int = 1_000_000
    """Each agent takes two."""
    failed_calls: int = 10_000
    """Their errors are kept: it may have caught them all, and let one of them out later."""
    recursion_depth: int = 1_000
    result_bytes: int = 16_777_216
    """Of what it returns, as JSON."""
    output_bytes: int = 4_194_304
    """Of what it prints and logs."""
    pending_bytes: int = 67_108_864
    """Of the prompts and options of all its calls under way."""


async def run_inline(
    script: str,
    args: JsonObject,
    host: ScriptHost,
    *,
    entry: str,
    seed: str,
    first_ms: int,
    name: str,
    root: Lane | None = None,
    width: int = 8,
    limits: SandboxLimits | None = None,
) -> JsonValue:
    """What `entry(ctx, args)` of the script returns.

    Args:
        seed: Of its `random` module.
        first_ms: What its clock stands at, Unix ms.
        root: Where it stands in its run; None: at the root.
        width: Branches of one split that are begun at once.

    Raises:
        SandboxError: it passed a limit, or its process died.
        ScriptError: it raised.
        WorkflowInputError: `not_serialisable`, what it returned is not JSON.
        MissingExtraError
        Exception: what the host raised at one of its calls, and it let out; `RunHaltedError` at once.
    """
    if not entry.isidentifier() or keyword.iskeyword(entry):
        raise WorkflowInputError("bad_script", f"the name of its function is {entry!r}, which is none")
    run = _Run(_parsed(runnable_text, script), script, host, limits or SandboxLimits(), file_name=f"<workflow {name}>")
    root = root or Lane()
    setup: JsonObject = {
        "args": args,
        "first_ms": first_ms,
        "lane": root.path,
        "max_result": run.limits.result_bytes,
        "phase": root.phase,
        "total": host.budget()[0],
        "width": width,
    }
    return await run.run(entry, encode_json(setup).decode(), seed, first_ms)


class _Run:
    def __init__(self, text: str, source: str, host: ScriptHost, limits: SandboxLimits, *, file_name: str) -> None:
        self.limits = limits
        self._text = text
        self._source = source.split("\n")
        self._file_name = file_name
        self._calls = SandboxCalls(
            host, self._end, max_pending_bytes=limits.pending_bytes, max_errors=limits.failed_calls
        )
        self._ending: BaseException | None = None
        """Why the sandbox was ended from here."""
        self._process: SandboxProcess[str] | None = None
        # What is known in the thread:
        self._result: str | None = None
        self._raised_again: list[Any] = []
        """Class, message and line of the failure of a slot that was raised behind its siblings last."""
        self._output_bytes = 0
        self._unfinished_line: list[str] = []

    async def run(self, entry: str, setup: str, seed: str, first_ms: int) -> JsonValue:
        self._process = SandboxProcess(
            lambda monty, session: self._drive(monty, session, entry, setup),
            name=self._file_name,
            wake=self._calls.wake,
            close=self._calls.close,
            limits=_monty_limits(self.limits),
            os_policy={
                "datetime": datetime.fromtimestamp(first_ms / 1000, UTC),
                "random_start": {"seed": seed},
                "sleep": "zero",
            },
        )
        text = ""
        try:
            text = await self._process.run()
        except Exception:
            if self._ending is None:
                raise
        if self._ending is not None:
            raise self._ending
        try:
            value: JsonValue = decode_json(text)
        except (ValueError, RecursionError) as error:
            raise WorkflowInputError("not_serialisable", f"what the script returned is not JSON: {error}") from None
        return value

    def _end(self, error: BaseException) -> None:
        """From either side: the first reason counts."""
        if self._ending is None:
            self._ending = error
        assert self._process is not None
        self._process.kill()

    # ---- in the thread ----

    def _drive(self, monty: Any, session: Session, entry: str, setup: str) -> str:
        def __fanfold_ask__() -> None:
            """Stands for all calls of the host; they are answered as snapshots."""

        try:
            session.feed_run(
                packaged("prelude.py.txt"),
                inputs={"__fanfold_setup__": setup},
                external_lookup={"__fanfold_ask__": __fanfold_ask__},
            )
            self._feed(monty, session, self._text)
            self._feed(monty, session, f"await __fanfold_launch__({entry})")
        except monty.MontyError as error:
            raise self._fault(monty, error) from None
        finally:
            self._say("".join(self._unfinished_line))
        if self._result is None:
            raise SandboxError(reason="it ended without a result: it has overwritten a name that begins with __fanfold")
        return self._result

    def _feed(self, monty: Any, session: Session, text: str) -> None:
        # The value of what was fed is never looked at: it is the script's, and see the top.
        snapshot = session.feed_start(text, print_callback=self._printed)
        while not isinstance(snapshot, monty.MontyComplete):
            if isinstance(snapshot, monty.FutureSnapshot):
                settled = self._calls.settled()
                snapshot = snapshot.resume({call_id: {"return_value": settled[call_id]} for call_id in settled})
            elif isinstance(snapshot, monty.NameLookupSnapshot):
                snapshot = snapshot.resume()
            elif snapshot.is_os_function:
                snapshot = snapshot.resume_not_handled()
            elif snapshot.position.filename != _PRELUDE_FILE:
                message = f"name '{snapshot.function_name}' is not defined"
                snapshot = snapshot.resume({"exc_type": "NameError", "message": message})
            else:
                snapshot = snapshot.resume(self._answered(snapshot))

    def _answered(self, call: Any) -> JsonObject:
        kind, text = call.args
        asked = Asked(kind, text, call.call_id if kind in TAKES_TIME else None)
        if kind in TAKES_TIME:
            self._calls.begin(asked)
            return {"future": ...}
        if kind in NEEDS_NO_ANSWER:
            self._calls.post(asked)
        elif kind == "done":
            self._result = text
        elif kind == "raised_again":
            self._raised_again = decode_json(text)
        elif kind == "too_large":
            raise SandboxError(reason=f"what it returned takes {text} bytes, of at most {self.limits.result_bytes:,}")
        else:
            if kind == "log":
                self._count_output(text)
            return {"return_value": self._calls.answer(asked)}
        return {"return_value": None}

    def _printed(self, _stream: str, text: str) -> None:
        self._count_output(text)
        self._unfinished_line.append(text)
        if "\n" in text:
            *whole, rest = "".join(self._unfinished_line).split("\n")
            self._unfinished_line = [rest]
            for line in whole:
                self._say(line)

    def _say(self, line: str) -> None:
        if line.strip():
            self._count_output("")
            self._calls.answer(Asked("log", encode_json(line).decode()))

    def _count_output(self, text: str) -> None:
        self._output_bytes += len(text) + _LINE_COSTS
        if self._output_bytes > self.limits.output_bytes:
            error = SandboxError(reason=f"it printed and logged more than {self.limits.output_bytes:,} bytes")
            self._end(error)  # what is raised while it prints does not come through the sandbox as it is
            raise error

    def _fault(self, monty: Any, error: Any) -> Exception:
        """What is to be raised for what ended the script."""
        if isinstance(error, monty.MontyCrashedError):
            reason = "it ran too long" if error.timed_out else f"its process died: {error}"
            return SandboxError(reason=reason)
        frames = [frame for frame in error.traceback() if frame.filename == _SCRIPT_FILE]
        line = frames[-1].line if frames else None
        message, told = error.display("msg"), error.display("type-msg")
        if told.startswith(_LIMITS_TOLD):
            return SandboxError(reason=message, line=line)
        error_type = told.removesuffix(message).rstrip(": ").rpartition(".")[2]
        raised = self._calls.error_that_reads(error_type, message)
        if error_type == "KeyError":
            message = str(KeyError(message))
        if self._raised_again[:2] == [error_type, message]:
            line = self._raised_again[2]
        trace = "".join(self._traced(frame) for frame in frames[-_MAX_FRAMES:])
        if raised is not None:
            return _at_line(raised, line, trace)
        return ScriptError(error_type=error_type, message=message[:_MAX_MESSAGE], line=line, trace=trace)

    def _traced(self, frame: Any) -> str:
        source = "".join(self._source[frame.line - 1 : frame.line]).strip()
        return f'  File "{self._file_name}", line {frame.line}, in {frame.function_name}\n    {source}\n'


def _at_line(error: Exception, line: int | None, trace: str) -> Exception:
    if line is not None and isinstance(error, FanfoldError):
        vars(error).setdefault("line", line)  # as a ScriptError has it: who reports it looks for no more than that
    if trace:
        error.add_note(f"In the script:\n{trace.rstrip()}")
    return error


def _monty_limits(limits: SandboxLimits) -> JsonObject:
    return {
        "max_turn_duration_secs": limits.turn_seconds,
        "max_feed_duration_secs": limits.total_seconds,
        "max_memory": limits.memory_bytes,
        "max_suspensions": limits.host_calls,
        "max_recursion_depth": limits.recursion_depth,
    }


# ---- the check before a launch ----


async def check_inline(script: str) -> None:
    """Look for what is wrong with a script, without running any of it: its syntax and its types.

    Raises:
        WorkflowInputError: `bad_script`, naming each fault with its line.
        MissingExtraError
    """
    typed, runnable = _parsed(checkable_text, script), _parsed(runnable_text, script)
    process = SandboxProcess(
        lambda monty, session: list(_faults(monty, session, typed, runnable)),
        name="check",
        limits=_monty_limits(SandboxLimits()),
        script_name="script.py",
        type_check=True,
        type_check_stubs=packaged("context.pyi.txt"),
        type_check_format="concise",
    )
    faults = await process.run()
    if faults:
        shown = faults[:_MAX_FAULTS] + ([f"and {len(faults) - _MAX_FAULTS} more"] if len(faults) > _MAX_FAULTS else [])
        raise WorkflowInputError("bad_script", "the script cannot run: " + "; ".join(shown))


def _faults(monty: Any, session: Session, typed: str, runnable: str) -> Iterator[str]:
    # What is fed would also be run. So its types are checked with a fault of ours before it, which is always found ...
    try:
        session.feed_run(f"{_TYPE_FAULT}\n{typed}")
    except monty.MontyTypingError as error:
        found = [(int(line) - 1, _advised(message)) for line, message in _DIAGNOSTIC.findall(error.display())]
        yield from (f"line {line}: {message}" for line, message in found if line)
    except monty.MontyError as error:  # a limit, on types that grow and grow
        yield f"its types cannot be checked: {error}"
        return
    # ... and whether the sandbox can read it, with a stop of ours before it.
    try:
        session.feed_run(f"{_STOP}\n{runnable}", skip_type_check=True)
    except (monty.MontySyntaxError, monty.MontyRuntimeError) as error:
        line = error.traceback()[-1].line - 1
        if line:
            yield f"line {line}: {error.display('msg')}"


def _advised(message: str) -> str:
    return f"{message}; ctx.failure(error) has its code and more" if _OF_ERROR.match(message) else message


def _parsed(change: Callable[[str], str], script: str) -> str:
    try:
        return change(script)
    except SyntaxError as error:
        raise WorkflowInputError("bad_script", f"the script is no Python: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise WorkflowInputError("bad_script", f"the script is no Python: {error}") from None
