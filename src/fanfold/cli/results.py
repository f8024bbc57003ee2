"""Row: one item (or step) and what came of it."""

import re
from dataclasses import dataclass

from fanfold.cli.cells import one_line
from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.contracts.steps import StepOutcome
from fanfold.errors import ParkedError

_STRUCTURED = re.compile(r"(?P<answer>.*)\n\n\[(?P<why>structured output failed: .*)\]", re.DOTALL)
"""The failure of a step whose answers did not fit its schema: the last of them, then why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    item: str
    success: bool
    output: str
    """The final text; for a failure the reason."""
    structured: JsonValue = None
    total_tokens: int = 0
    seconds: float = 0.0
    is_cached: bool = False
    stop_reason: str | None = None
    """Why a successful answer did not end by itself, such as `length`."""
    is_parked: bool = False
    """It failed only because nobody could be asked."""

    @property
    def reason(self) -> str:
        """Why it failed, on one line, with the reason before what the model wrote."""
        found = _STRUCTURED.fullmatch(self.output)
        return one_line(f"{found['why']}; it wrote: {found['answer']}" if found else self.output)

    def record(self) -> JsonObject:
        """`item`, `success`, then `structured` or `output` or `error`, then `stop_reason` if any, then `total_tokens`.

        The same whether the row ran now or came from the journal, so a continued job writes the file that an
        uninterrupted one would have written.
        """
        if not self.success:
            result: JsonObject = {"error": self.output}
        else:
            result = {"output": self.output} if self.structured is None else {"structured": self.structured}
        if self.stop_reason is not None:
            result["stop_reason"] = self.stop_reason
        return {"item": self.item, "success": self.success, **result, "total_tokens": self.total_tokens}


def row_of(item: str, outcome: StepOutcome, *, is_cached: bool = False) -> Row:
    return Row(
        item=item,
        success=outcome.success,
        output=outcome.output,
        structured=outcome.structured,
        total_tokens=0 if outcome.usage is None else outcome.usage.total_tokens,
        seconds=(outcome.duration_ms or 0) / 1000,
        is_cached=is_cached,
        stop_reason=outcome.stop_reason,
        is_parked=outcome.error_code == ParkedError.code,
    )
