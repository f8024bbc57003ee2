"""Models: references made into clients, each once, sharing one transport and one endpoint's patience."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fanfold.contracts.settings import ModelSettings, ProviderSettings
from fanfold.env import HostEnv
from fanfold.protocols import ModelClient
from fanfold.session.closing import close_all
from fanfold.session.setup import ResolvedModel

_ADAPTERS: Mapping[str, tuple[str, str]] = {
    "openai": ("fanfold.providers.openai", "OpenAIClient"),
    "anthropic": ("fanfold.providers.anthropic", "AnthropicClient"),
    "local": ("fanfold.providers.local", "LocalClient"),
}


class Models:
    """Adapters are imported when the first model of their kind is named, so a missing extra breaks only its user."""

    def __init__(
        self, given: Mapping[str, ModelClient], providers: Mapping[str, ProviderSettings], env: HostEnv
    ) -> None:
        self._resolved = {reference: ResolvedModel(reference, client) for reference, client in given.items()}
        self._providers = providers
        self._env = env
        self._transport: Any = None
        self._endpoints: dict[tuple[str, str], Any] = {}

    def resolve(self, reference: str) -> ResolvedModel:
        """The client of `provider/model-id`.

        Raises:
            ConfigError: no such provider or model, or its key is missing.
            MissingExtraError: what its provider needs is not installed.
        """
        model = self._resolved.get(reference)
        if model is None:
            model = self._resolved[reference] = self._connected(reference)
        return model

    def _connected(self, reference: str) -> ResolvedModel:
        from fanfold.config.model_reference import find_model

        provider, model = find_model(reference, self._providers)
        return ResolvedModel(reference, self._client(provider, model), model.cost)

    def _client(self, provider: ProviderSettings, model: ModelSettings) -> ModelClient:
        module, name = _ADAPTERS[provider.kind]
        adapter: Any = getattr(import_module(module), name)
        if provider.kind == "local":
            local: ModelClient = adapter(provider, model, model.id)
            return local
        if self._transport is None:
            self._transport = import_module("fanfold.providers.http").HttpTransport()
        return self._retrying(adapter(self._transport, provider, model, model.id), provider, model)

    def _retrying(self, client: ModelClient, provider: ProviderSettings, model: ModelSettings) -> ModelClient:
        retry: Any = import_module("fanfold.providers.retry")
        key = model.api_key or provider.api_key
        endpoint = (provider.name, "" if key is None else key.value)
        if endpoint not in self._endpoints:
            self._endpoints[endpoint] = retry.Endpoint()
        patient: ModelClient = retry.RetryingClient(
            client, self._env, self._endpoints[endpoint], max_attempts=provider.max_attempts
        )
        return patient

    async def close(self) -> None:
        """Close every client and the transport, each though another failed."""
        clients = [model.client.close for model in self._resolved.values()]
        await close_all(clients if self._transport is None else [*clients, self._transport.close])
