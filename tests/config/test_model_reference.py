"""What `provider/model-id` names, and the nearest name when it names nothing."""

import pytest

from fanfold.config.discovery import settings_of
from fanfold.config.model_reference import find_model
from fanfold.contracts.settings import ModelSettings
from fanfold.errors import ConfigError

PROVIDERS = settings_of(
    """
    providers "openai" { structured_output = "prompt" }
    providers "gate" {
      base_url = "http://gate"
      models "org/big" { tool_call = false }
    }
    providers "local" { models "qwen" { name = "qwen.gguf" } }
    """,
    ".acl",
    "agent.acl",
    {},
).providers


@pytest.mark.parametrize(
    ("reference", "provider", "model"),
    [
        ("gate/org/big", "gate", PROVIDERS["gate"].models["org/big"]),
        ("openai/gpt-5", "openai", ModelSettings(id="gpt-5", structured_output="prompt")),
        ("local/qwen", "local", PROVIDERS["local"].models["qwen"]),
        ("local/default", "local", ModelSettings(id="default")),
        ("local//abs/path.gguf", "local", ModelSettings(id="/abs/path.gguf")),
        ("local/./rel.gguf", "local", ModelSettings(id="./rel.gguf")),
    ],
)
def test_reference_names_provider_and_model(reference: str, provider: str, model: ModelSettings) -> None:
    assert find_model(reference, PROVIDERS) == (PROVIDERS[provider], model)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("", "model '' must be provider/model-id, such as 'local/default'"),
        ("gpt-5", "model 'gpt-5' must be provider/model-id, such as 'local/default'"),
        ("openai/", "model 'openai/' must be provider/model-id, such as 'local/default'"),
        ("/x", "model '/x' must be provider/model-id, such as 'local/default'"),
        ("qwen", "model 'qwen' must be provider/model-id; did you mean 'local/qwen'?"),
        ("opnai/gpt-5", "unknown provider 'opnai' in model 'opnai/gpt-5'; did you mean 'openai'?"),
        (
            "zzz/gpt-5",
            "unknown provider 'zzz' in model 'zzz/gpt-5'; known: anthropic, gate, local, openai",
        ),
        (
            "gate/o/big",
            "unknown model 'o/big': provider 'gate' (agent.acl:3) lists its models; did you mean 'org/big'?",
        ),
        (
            "local/qwem",
            "unknown model 'qwem': provider 'local' (agent.acl:7) lists its models; did you mean 'qwen'?",
        ),
    ],
)
def test_a_wrong_reference_offers_the_nearest_name(reference: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_model(reference, PROVIDERS)
    assert caught.value.problems == (message,)
