"""What a call of an agent means, and what follows from it: its identity, and draws that come out the same each time."""

import hashlib
from typing import Literal

import msgspec

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.codec import encode_json
from fanfold.contracts.record import JsonObject
from fanfold.contracts.run_journal import Identity
from fanfold.errors import WorkflowInputError

CALL_VERSION = 1

_encode = msgspec.json.Encoder(order="sorted").encode
_FOR_OTHERS = ("description", "is_hidden")
"""Fields of a definition by which others choose the agent; itself it never sees them."""
_FLOATS = 1 << 53
"""Between 0 and 1, all equally far from each other."""


class CallMeaning(msgspec.Struct, frozen=True, kw_only=True):
    """All that makes an answer the answer to this call (spec-workflow 5.3). Not in it: where the call stands, how it is
    labelled, how long it may take, and whose run it is."""

    v: int = CALL_VERSION
    kind: Literal["agent"] = "agent"
    prompt: str
    """Every byte counts: texts that only look the same are two calls."""
    schema: JsonObject | bool | None = None
    agent: str
    agent_sha: str | None = None
    """See `agent_sha`; None where the definition is not known here."""
    model: str | None = None
    max_steps: int | None = None
    isolation: Literal["worktree"] | None = None
    tools: tuple[str, ...] | None = None
    """Sorted names of the tools that it is left with, where that is not its definition's business."""


def call_identity(meaning: CallMeaning) -> tuple[Identity, bytes]:
    """The identity of a call, 64 hex digits, and the JSON that it is the SHA-256 of, its keys sorted.

    Raises:
        WorkflowInputError: `bad_call`, it holds something that JSON cannot.
    """
    try:
        written = _encode(meaning)
    except (TypeError, ValueError, RecursionError) as error:
        raise WorkflowInputError("bad_call", f"agent(): the call cannot be written as JSON: {error}") from None
    return hashlib.sha256(written).hexdigest(), written


def agent_sha(definition: AgentDefinition) -> str:
    """SHA-256, 64 hex digits, of all that makes an agent do what it does."""
    fields = msgspec.structs.asdict(definition)
    return hashlib.sha256(_encode({name: fields[name] for name in fields if name not in _FOR_OTHERS})).hexdigest()


def drawn_float(seed: str, where: str) -> float:
    """0 <= x < 1: evenly spread over seeds and places, and always the same for one of each."""
    return int.from_bytes(_drawn("float", seed, where)[:8]) % _FLOATS / _FLOATS


def drawn_uuid(seed: str, where: str) -> str:
    """A UUID of version 8, the one for bits of one's own making (RFC 9562)."""
    bits = bytearray(_drawn("uuid", seed, where)[:16])
    bits[6] = bits[6] & 0x0F | 0x80
    bits[8] = bits[8] & 0x3F | 0x80
    text = bits.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _drawn(what: str, seed: str, where: str) -> bytes:
    # As a list: joined strings could be cut at two places and mean two things.
    return hashlib.sha256(encode_json((what, seed, where))).digest()
