"""ReplyInProgress: what of a model's reply has arrived, and what it is worth when no more will come."""

from collections.abc import Callable

from fanfold.contracts.messages import ModelReply, StopReason
from fanfold.errors import ProviderError
from fanfold.protocols import DeltaSink
from fanfold.providers.failures import nonsense
from fanfold.providers.route import HttpRoute
from fanfold.providers.tool_calls import CallAssembly, finished_calls
from fanfold.providers.usage import ReportedUsage, WireUsage

_MAY_BE_EMPTY = ("length", "content_filter")
"""Stops that explain an empty reply: asking again would give the same."""


class ReplyInProgress:
    """Filled by either wire, from one whole answer or from a stream.

    With `is_forced`, the arguments of the forced tool call are the reply's text, so that callers treat all
    structured modes alike. With `may_be_thought`, reasoning alone is a reply.
    """

    def __init__(
        self,
        route: HttpRoute,
        read_usage: Callable[[bytes], WireUsage],
        *,
        is_forced: bool,
        may_be_thought: bool,
        deltas: DeltaSink | None,
    ) -> None:
        self.stop: StopReason | None = None
        self.usage = ReportedUsage(read_usage)
        self.pieces = 0
        """How often something was said."""
        self._route = route
        self._is_forced = is_forced
        self._may_be_thought = may_be_thought
        self._deltas = deltas
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = CallAssembly()

    def add_text(self, piece: str) -> None:
        self.pieces += 1
        self._text.append(piece)
        if self._deltas is not None and not self._is_forced:
            self._deltas.text(piece)

    def add_reasoning(self, piece: str) -> None:
        self.pieces += 1
        self._reasoning.append(piece)
        if self._deltas is not None:
            self._deltas.reasoning(piece)

    def add_call(self, index: int | None, id: str, name: str, arguments: str) -> None:
        self.pieces += 1
        self._calls.take(index, id, name, arguments)
        if self._deltas is not None and self._is_forced and arguments and len(self._calls.calls) == 1:
            self._deltas.text(arguments)

    def finished(self) -> ModelReply:
        """The reply. `stop` None says that the stream ended without one: then text is kept as `incomplete`.

        Raises:
            ProviderError: `protocol`: nothing was said, or the stream broke off inside a tool call.
        """
        stop, fragments, text = self.stop, self._calls.calls, "".join(self._text)
        if stop is None:
            if fragments:
                raise self._useless("200, but its stream broke off inside a tool call")
            stop = "incomplete"
        if fragments and self._is_forced:
            # Never completed: what was cut off at the length limit stays cut, and `stop` says so.
            text, fragments = _object_text(fragments[0].arguments), []
        if stop in ("stop", "tool_calls"):
            stop = "tool_calls" if fragments else "stop"
        reasoning = "".join(self._reasoning)
        is_said = fragments or text.strip() or (self._may_be_thought and reasoning.strip())
        if not is_said and stop not in _MAY_BE_EMPTY:
            raise self._useless("200, but its model said nothing: no text and no tool call")
        return ModelReply(
            text=text,
            reasoning=reasoning,
            calls=finished_calls(fragments) if fragments else (),
            stop_reason=stop,
            usage=self.usage.counted(),
        )

    def _useless(self, reason: str) -> ProviderError:
        return nonsense(self._route, reason)


def _object_text(arguments: str) -> str:
    return "{}" if arguments.strip() in ("", "null") else arguments
