"""`fanfold models`: the models that --model can name."""

import os
from pathlib import Path
from typing import Any

import click

from fanfold.cli.checks import shown_key, shown_url
from fanfold.cli.console import Console
from fanfold.cli.options import agent_options, console_options, json_option
from fanfold.cli.render import table
from fanfold.config.discovery import load
from fanfold.config.model_reference import EMBEDDED_MODEL
from fanfold.contracts.settings import ModelSettings, ProviderSettings, Settings

_ANY = "<any id>"


@click.group("models")
def command() -> None:
    """List the models that can be named."""


@command.command("list")
@json_option
@agent_options
@console_options
def list_models(*, console: Console, as_json: bool, config: Path | None) -> None:
    """Each provider's models; a provider that lists none takes any id that its server knows."""
    settings = load(config, start=Path.cwd(), environ=os.environ)
    models = [
        _described(settings, provider, model_id)
        for provider in settings.providers.values()
        for model_id in _ids(provider)
    ]
    if as_json:
        console.write_json({"schema": "fanfold/models/v1", "models": models})
        return
    head = ["model", "wire", "context", "key", "place"]
    rows = [[model.get(name, "") for name in head] for model in models]
    console.write(table(head, rows, width=console.out_width, to_right=("context",)))
    console.say(f"default: {settings.default_model}")


def _ids(provider: ProviderSettings) -> list[str]:
    if provider.kind == "local":
        return [EMBEDDED_MODEL, *provider.models, "<file.gguf>"]
    return list(provider.models) or [_ANY]


def _described(settings: Settings, provider: ProviderSettings, model_id: str) -> dict[str, Any]:
    model = provider.models.get(model_id) or ModelSettings(id=model_id)
    key = model.api_key or provider.api_key
    name = f"{provider.name}/{model_id}"
    described = {
        "model": name,
        "wire": provider.kind,
        "context": model.context_tokens,
        "key": "not needed" if key is None else shown_key(key),
        "place": shown_url(model.base_url or provider.base_url) or "in this process",
        "is_default": name == settings.default_model,
    }
    return {key: value for key, value in described.items() if value is not None}
