"""What a `provider/model-id` names."""

from collections.abc import Mapping

from fanfold.contracts.settings import ModelSettings, ProviderSettings
from fanfold.errors import ConfigError
from fanfold.nearest import did_you_mean

EMBEDDED_MODEL = "default"


def find_model(reference: str, providers: Mapping[str, ProviderSettings]) -> tuple[ProviderSettings, ModelSettings]:
    """The provider and the model that `reference` names; an unlisted model has the provider's defaults.

    The id may contain slashes. A provider that lists models has only these; `local` also has the embedded
    model `default` and any `.gguf` file.

    Raises:
        ConfigError: one line with the nearest name that exists.
    """
    name, _, model_id = reference.partition("/")
    if not name or not model_id:
        raise ConfigError(f"model {reference!r} must be provider/model-id{_qualified(reference, providers)}")
    provider = providers.get(name)
    if provider is None:
        raise ConfigError(f"unknown provider {name!r} in model {reference!r}{did_you_mean(name, providers)}")
    listed = provider.models.get(model_id)
    if listed is not None:
        return provider, listed
    is_file_or_embedded = provider.kind == "local" and (model_id == EMBEDDED_MODEL or model_id.endswith(".gguf"))
    if provider.models and not is_file_or_embedded:
        raise ConfigError(
            f"unknown model {model_id!r}: provider '{name}' ({provider.place}) lists its models"
            f"{did_you_mean(model_id, provider.models)}"
        )
    return provider, ModelSettings(id=model_id, structured_output=provider.structured_output)


def _qualified(model_id: str, providers: Mapping[str, ProviderSettings]) -> str:
    owner = next((name for name, provider in providers.items() if model_id in provider.models), None)
    return f"; did you mean '{owner}/{model_id}'?" if owner else f", such as 'local/{EMBEDDED_MODEL}'"
