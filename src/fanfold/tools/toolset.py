"""The built-in tools of one workspace."""

from pathlib import Path

from fanfold.protocols import Tool
from fanfold.tools import edit, ls, read, write
from fanfold.tools.ask import AskUserTool
from fanfold.tools.file_tool import FileTool
from fanfold.tools.git import GitTool
from fanfold.tools.plan import PlanTool
from fanfold.tools.search import SearchTool
from fanfold.tools.shell import BashTool
from fanfold.tools.web_fetch import WebFetchTool
from fanfold.tools.workspace import Workspace


def builtin_tools(
    workspace: Workspace, *, allow_unsandboxed_bash: bool, readable: tuple[Path, ...] = ()
) -> dict[str, Tool]:
    """All of them by name, in the order in which a model is told of them. For `readable` see `BashTool`."""
    tools: tuple[Tool, ...] = (
        FileTool(read.SPEC, workspace, read.read),
        FileTool(write.SPEC, workspace, write.write),
        FileTool(edit.SPEC, workspace, edit.edit),
        FileTool(ls.SPEC, workspace, ls.ls),
        SearchTool(workspace),
        BashTool(workspace, allow_unsandboxed_bash, readable=readable),
        GitTool(workspace),
        WebFetchTool(),
        PlanTool(),
        AskUserTool(),
    )
    return {tool.spec.name: tool for tool in tools}
