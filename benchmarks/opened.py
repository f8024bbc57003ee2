"""A fanfold agent on the fake server or on a model of its own, with a scratch directory as workspace."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.workload import AddTool
from fanfold import Agent, ModelClient


@asynccontextmanager
async def agent_on(model: str | ModelClient) -> AsyncIterator[tuple[Agent, Path]]:
    """The agent and its workspace. `model`: the base URL of a server, or a client.

    The workspace lies under the current directory: its log is synced to a disk, where `/tmp` may be memory.
    """
    tools = {"add": AddTool()}
    with tempfile.TemporaryDirectory(prefix=".benchmark-", dir=Path.cwd()) as workspace:
        if isinstance(model, str):
            config = (
                f'default_model = "fake/fake"\nproviders "fake" {{\n  kind = "openai"\n  base_url = "{model}"\n}}\n'
            )
            made = await Agent.create_async(config, tools=tools)
        else:
            made = await Agent.create_async(models={"stub/stub": model}, tools=tools)
        async with made as agent:
            yield agent, Path(workspace)
