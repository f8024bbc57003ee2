"""`ask_user`: only its description; the session's loop parks the run instead of running it."""

from dataclasses import dataclass

from fanfold.contracts.messages import ASK_USER, ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.protocols import ToolScope

MAX_OPTIONS = 8

SPEC = ToolSpec(
    name=ASK_USER,
    description="Ask the user one question, wait for it. Only for what you cannot find out. Permits nothing.",
    parameters={
        "type": "object",
        "properties": {
            "question": {"type": "string", "minLength": 1},
            "options": {"type": "array", "maxItems": MAX_OPTIONS, "items": {"type": "string"}},
            "allow_free_text": {"type": "boolean", "description": "also take an answer that is no option"},
        },
        "required": ["question"],
        "additionalProperties": False,
    },
    is_read_only=True,
)


@dataclass(frozen=True, slots=True)
class AskUserTool:
    spec: ToolSpec = SPEC

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        return ToolOutput(
            output="ask_user needs a session that can wait for a person; here nobody is asked", exit_code=1
        )
