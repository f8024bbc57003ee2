"""What the programs of the README and the docs import in place of `fanfold`, to run on a scripted model."""

from typing import Any

import fanfold
from fanfold.testing import ScriptedModel

FileSessionStore = fanfold.FileSessionStore
MODEL = {
    r"^What is this project": "It is a project.",
    r"^Which": "A README.",
    r"^Does": '{"says_so": true}',
    r"^List": "open, close",
    r"^open": "Good names.",
}


class Agent(fanfold.Agent):
    @classmethod
    def create(cls, config_source: Any = None, **more: Any) -> "Agent":
        return super().create(models={"scripted/model": ScriptedModel(MODEL)}, **more)
