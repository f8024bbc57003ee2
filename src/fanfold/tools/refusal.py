"""ToolRefusal: what a tool cannot do, worded for the model that asked."""

from fanfold.contracts.messages import ToolOutput
from fanfold.errors import UsageError


class ToolRefusal(UsageError):
    """Its text is the tool's answer; it never leaves this package."""

    code = "TOOL_REFUSAL"


def failed_output(doing: str, error: ToolRefusal | OSError) -> ToolOutput:
    """The answer to a call that came to nothing; `doing` names the work, as in `read src/a.py`."""
    if isinstance(error, OSError):
        return ToolOutput(output=f"Failed to {doing}: {error.strerror or error}", exit_code=1)
    return ToolOutput(output=str(error), exit_code=1)
