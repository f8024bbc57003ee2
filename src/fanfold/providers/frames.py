"""FrameCache: everything of a request's body but the messages, encoded once for all calls that share it."""

import operator
from collections.abc import Callable
from dataclasses import dataclass

from fanfold.contracts.messages import ModelRequest, ToolSpec
from fanfold.contracts.record import JsonObject

MOST_FRAMES = 8


@dataclass(frozen=True, slots=True)
class Frame:
    """JSON before and after the messages."""

    head: bytes
    tail: bytes


@dataclass(frozen=True, slots=True)
class _Known:
    system: str
    tools: tuple[ToolSpec, ...]
    output_schema: JsonObject | None
    max_output_tokens: int | None
    temperature: float | None
    variant: object
    frame: Frame

    def fits(self, request: ModelRequest, variant: object) -> bool:
        """Tools and schema by identity: `{"const": 1} == {"const": True}` in Python, but not in JSON."""
        return (
            (self.tools is request.tools or _are_same(self.tools, request.tools))
            and self.output_schema is request.output_schema
            and self.system == request.system
            and self.max_output_tokens == request.max_output_tokens
            and self.temperature == request.temperature
            and self.variant == variant
        )


class FrameCache:
    """The frames used last. A thousand children of one agent have one: system prompt, tools and schema."""

    def __init__(self) -> None:
        self._known: list[_Known] = []

    def get(self, request: ModelRequest, variant: object, build: Callable[[], Frame]) -> Frame:
        """The frame of `request`, where `variant` is whatever else it depends on."""
        for known in self._known:
            if known.fits(request, variant):
                return known.frame
        frame = build()
        self._known.insert(
            0,
            _Known(
                request.system,
                request.tools,
                request.output_schema,
                request.max_output_tokens,
                request.temperature,
                variant,
                frame,
            ),
        )
        del self._known[MOST_FRAMES:]
        return frame


def _are_same(some: tuple[object, ...], others: tuple[object, ...]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
