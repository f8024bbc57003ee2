"""What `fanfold init` writes, and the examples of the reference, are configurations that load."""

import re
from pathlib import Path

from fanfold.config.discovery import settings_of
from fanfold.config.template import AGENT_ACL

REFERENCE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_template_loads_without_any_key() -> None:
    settings = settings_of(AGENT_ACL, ".acl", "agent.acl", {})

    assert settings.default_model == "local/default"
    assert set(settings.providers) == {"openai", "anthropic", "local"}


def test_the_template_loads_with_each_of_its_examples_in_use() -> None:
    used = re.sub(r"(?m)^#(?! \S|\n)", "", AGENT_ACL)
    # Three examples give the default model; a file may say it once.
    used = re.sub(r'(?m)^default_model = "(openai|local)/.*\n', "", used)
    settings = settings_of(used, ".acl", "agent.acl", {})

    assert settings.default_model.startswith("anthropic/")
    assert settings.providers["ollama"].models
    assert settings.permissions.allow
    assert settings.allow_unsandboxed_bash
    assert settings.max_tool_rounds


def test_the_two_examples_of_the_reference_say_the_same() -> None:
    page = REFERENCE.read_text(encoding="utf-8")
    (acl,) = re.findall(r"```acl\n(.*?)```", page, re.DOTALL)
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    from_acl, from_toml = settings_of(acl, ".acl", "x", {}), settings_of(toml, ".toml", "x", {})

    assert from_acl.default_model == from_toml.default_model == "vllm/qwen3-32b"
    assert from_acl.permissions == from_toml.permissions
    assert from_acl.providers["vllm"].models == from_toml.providers["vllm"].models


def test_the_reference_names_every_key() -> None:
    page = REFERENCE.read_text(encoding="utf-8")
    everything = """
        nonsense = 1
        permissions { nonsense = 1 }
        providers "openai" { nonsense = 1 }
        providers "x" { base_url = "http://x", models "y" { nonsense = 1, limit { nonsense = 1 } } }
    """
    try:
        settings_of(everything, ".acl", "x", {})
    except ValueError as error:
        keys = set(re.findall(r"\w+", " ".join(re.findall(r"known: (.*)", str(error)))))
    assert len(keys) > 20
    assert {key for key in keys if f"`{key}`" not in page} == set()
