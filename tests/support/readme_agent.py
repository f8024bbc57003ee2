"""What the README's program imports in place of `fanfold`, to run on a scripted model."""

from typing import Any

import fanfold
from fanfold.testing import ScriptedModel

MODEL = {r"^What is this project": "It is a project.", r"^Which": "A README.", r"^Does": '{"says_so": true}'}


class Agent(fanfold.Agent):
    @classmethod
    def create(cls, config_source: Any = None, **more: Any) -> "Agent":
        return super().create(models={"scripted/model": ScriptedModel(MODEL)}, **more)
