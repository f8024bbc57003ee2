"""LiveModel: a configured model as a client of its own, connected at its first call: what a cassette records."""

import os
from pathlib import Path

import msgspec

from fanfold.config.discovery import load
from fanfold.contracts.messages import ModelReply, ModelRequest
from fanfold.env import HostEnv
from fanfold.models import Models
from fanfold.protocols import DeltaSink, ModelCapabilities, ModelClient


class LiveModel:
    """The model `provider/model-id` of the configuration, found as `Agent.create(config_source)` finds it.

    Nothing is looked up before it is used, so it may be named where only recordings are replayed and no key is set.
    It connects anew when it is used after `close`.

    Raises (when it is used):
        ConfigError: no such provider or model, or its key is missing.
        MissingExtraError: what its provider needs is not installed.
    """

    def __init__(self, reference: str, config_source: str | Path | None = None) -> None:
        self.reference = reference
        self._config_source = config_source
        self._models: Models | None = None

    @property
    def capabilities(self) -> ModelCapabilities:
        return self._client().capabilities

    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        known_as = self.reference.partition("/")[2]  # whatever name the agent gave to the cassette
        return await self._client().generate(msgspec.structs.replace(request, model=known_as), deltas)

    async def close(self) -> None:
        models, self._models = self._models, None
        if models is not None:
            await models.close()

    def _client(self) -> ModelClient:
        if self._models is None:
            settings = load(self._config_source, start=Path.cwd(), environ=os.environ)
            self._models = Models({}, settings.providers, HostEnv())
        return self._models.resolve(self.reference).client
