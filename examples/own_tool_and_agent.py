"""A tool and a role of your own, and a stream of events; on a scripted model, so without a key."""

import tempfile

from fanfold import Agent, AgentDefinition, ToolOutput, ToolScope, ToolSpec
from fanfold.testing import ScriptedModel, calls


class Weather:
    spec = ToolSpec(
        name="weather",
        description="The weather of a city right now.",
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        is_read_only=True,  # changes nothing, so nobody has to approve its calls
    )

    async def run(self, args: dict[str, str], scope: ToolScope) -> ToolOutput:
        return ToolOutput(output=f"rain in {args['city']}")


forecaster = AgentDefinition(
    name="forecaster",
    description="Tells the weather.",
    prompt="Ask the tool, then answer in one sentence.",
    tools=("weather",),
)
model = ScriptedModel([calls(("weather", {"city": "Bergen"})), "It rains in Bergen."] * 2)

with (
    tempfile.TemporaryDirectory() as workspace,
    Agent.create(
        models={"scripted/model": model}, tools={"weather": Weather()}, agents={"forecaster": forecaster}
    ) as agent,
):
    session = agent.session(workspace)
    [outcome] = session.parallel([{"task_id": "bergen", "agent": "forecaster", "prompt": "How is it in Bergen?"}])
    print(outcome.output)
    for event in session.stream("And now?"):
        if event.type == "tool_end":
            print(f"[{event.tool_name}: {event.tool_output}]")
        elif event.type == "agent_end":
            print(event.text)
