"""Row: one item (or step) and what came of it."""

from dataclasses import dataclass

from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.contracts.steps import StepOutcome


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

    def record(self) -> JsonObject:
        """`item`, `success`, then `structured` or `output` or `error`, then `total_tokens`.

        The same whether the row ran now or came from the journal, so a continued job writes the file that an
        uninterrupted one would have written.
        """
        if not self.success:
            result: JsonObject = {"error": self.output}
        else:
            result = {"output": self.output} if self.structured is None else {"structured": self.structured}
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
    )
