"""What the programs of the README and the docs import in place of `fanfold`, to run on a scripted model."""

from typing import Any

import fanfold
from fanfold.testing import Reply, ScriptedModel, calls

FileSessionStore = fanfold.FileSessionStore
MapItem = fanfold.MapItem
MODEL: dict[str, Reply | str | Exception] = {
    r"^List every file": Reply(text="Many files.", delay=0.5),
    r"^Only the documents": "A README.",
    r"^What is this project": "It is a project.",
    r"^What is parser.py for": "It parses lines.",
    r"^What is upload.py for": "It sends readings.",
    r"^Shorter: It parses": "Parses.",
    r"^Shorter: It sends": "Uploads.",
    r"^Which": "A README.",
    r"^Does": '{"says_so": true}',
    r"^Have an agent count": calls(
        ("task", {"tasks": [{"agent": "explore", "prompt": "Count the files.", "background": True}]})
    ),
    r"^Task started": "It has begun.",
    r"^Count the files": Reply(text="There are 3.", delay=0.5),
    r"^<task_notification>": "3 files.",
    r"^List": "open, close",
    r"^open": "Good names.",
}


class Agent(fanfold.Agent):
    @classmethod
    def create(cls, config_source: Any = None, **more: Any) -> "Agent":
        return super().create(models={"scripted/model": ScriptedModel(MODEL)}, **more)

    @classmethod
    async def create_async(cls, config_source: Any = None, **more: Any) -> "Agent":
        return await super().create_async(models={"scripted/model": ScriptedModel(MODEL)}, **more)
