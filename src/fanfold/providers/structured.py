"""How a client makes a model answer with JSON of a schema: a native mode, a forced tool, or not at all."""

from typing import Literal

from fanfold.contracts.messages import ModelRequest
from fanfold.contracts.settings import ModelSettings, ProviderSettings
from fanfold.protocols import ModelCapabilities

EMIT_TOOL = "emit_step_output"
EMIT_DESCRIPTION = "Give the result of this step. Call it exactly once."
SCHEMA_NAME = "step_output"


def capabilities_of(
    provider: ProviderSettings,
    model: ModelSettings | None,
    *,
    automatic: Literal["json_schema", "forced_tool", "prompt"],
) -> ModelCapabilities:
    """What the settings say, the model's before the provider's; `automatic` where they leave it open."""
    modes = (model.structured_output if model else "auto", provider.structured_output, automatic)
    return ModelCapabilities(
        structured=next(mode for mode in modes if mode != "auto"),
        tools=model.tool_call if model else True,
        context_tokens=model.context_tokens if model else None,
    )


def is_forced(capabilities: ModelCapabilities, request: ModelRequest) -> bool:
    """Whether this call forces the emit tool. Not where the model may use other tools: they must stay usable,
    so the caller asks for the JSON in words."""
    return capabilities.structured == "forced_tool" and request.output_schema is not None and not request.tools


def may_be_thought(request: ModelRequest) -> bool:
    """Whether a reply of reasoning alone counts: some servers deliver a JSON answer there, where its asker looks for
    it. Any other reply without text is empty, and worth another try."""
    return request.output_schema is not None
