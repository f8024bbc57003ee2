"""ControlRequest: what a steer or an interrupt asks for, checked for its shape (notes 5.2-5.4)."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.errors import RunControlError
from fanfold.kernel.plain_text import is_plain

MAX_STEER_BYTES = 131_072
MAX_REASON_BYTES = 4_096
MAX_ID_BYTES = 512

Operation = Literal["steer", "interrupt"]


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    operation: Operation
    input: str = ""
    reason: str = ""
    request_id: str | None = None
    session_id: str | None = None
    run_id: str | None = None
    expected_turn_id: str | None = None
    expected_turn_revision: int | None = None
    deadline_ms: int | None = None
    force: bool = False
    """Advice only: clean-up is always waited for."""

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(encode_json(self)).hexdigest()


def parse_request(operation: Operation, options: Mapping[str, Any] | None, **given: Any) -> ControlRequest:
    """Raises RunControlError, `INVALID_REQUEST`."""
    keys = set(ControlRequest.__struct_fields__) - {"operation", "input"}
    if operation == "steer":
        keys -= {"reason", "force"}
    try:
        found = {key: value for key, value in dict({} if options is None else options).items() if value is not None}
    except (TypeError, ValueError):
        raise _invalid(f"options must be a mapping, got {options!r}") from None
    if unknown := sorted(str(key) for key in set(found) - keys):
        raise _invalid(f"unknown option '{unknown[0]}'; there are: {', '.join(sorted(keys))}")
    try:
        request = msgspec.convert({**found, **given, "operation": operation}, ControlRequest)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        raise _invalid(f"{place.strip('`').removeprefix('$.')}: {reason}") from None
    _check_shape(request)
    return request


def _check_shape(request: ControlRequest) -> None:
    if request.operation == "steer":
        if not request.input.strip():
            raise _invalid("steer input must not be empty")
        _check_size("steer input", request.input, MAX_STEER_BYTES)
    _check_size("reason", request.reason, MAX_REASON_BYTES)
    for field in ("request_id", "session_id", "run_id", "expected_turn_id"):
        text: str | None = getattr(request, field)
        if text is None:
            continue
        if not text.strip():
            raise _invalid(f"{field} must not be empty")
        if re.search(r"[\0\r\n]", text):
            raise _invalid(f"{field} contains a control character")
        _check_size(field, text, MAX_ID_BYTES)


def _check_size(what: str, text: str, most: int) -> None:
    if not is_plain(text):
        raise _invalid(f"{what} is not text that can be written as UTF-8")
    if len(text.encode()) > most:
        raise _invalid(f"{what} exceeds {most} bytes")


def _invalid(why: str) -> RunControlError:
    return RunControlError("INVALID_REQUEST", f"invalid run-control request: {why}")
