"""What a snippet of the specification imports in place of `fanfold`, to run on a scripted model."""

from typing import Any

import fanfold
from fanfold.contracts.messages import ModelRequest
from fanfold.testing import ScriptedModel, as_json
from fanfold.testing.scripted import newest_text

SessionOptions = fanfold.SessionOptions
FileSessionStore = fanfold.FileSessionStore


def _answer(request: ModelRequest) -> str:
    return as_json({"memory_safe": True}) if "memory_safe" in newest_text(request) else "Rust, C, Zig"


class Agent(fanfold.Agent):
    @classmethod
    def create(cls, config_source: Any = None, **more: Any) -> "Agent":
        return super().create(models={"scripted/model": ScriptedModel(_answer)}, **more)
