"""`write`: a file's whole new content, put in place at once."""

from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.tools.workspace import Workspace

SPEC = ToolSpec(
    name="write",
    description="Write a file, replacing all it held. Missing folders are made. For a small change use edit.",
    parameters={
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["file_path", "content"],
        "additionalProperties": False,
    },
)


def write(workspace: Workspace, args: JsonObject) -> ToolOutput:
    path = workspace.resolve(args["file_path"])
    workspace.refuse_protected(path)
    content = args["content"].encode()
    workspace.refuse_size(path, len(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    workspace.replace(path, content)
    return ToolOutput(output=f"Wrote {len(content)} bytes to {workspace.shown(path)}")
