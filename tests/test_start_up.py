"""What starting costs, as laws that no machine's speed can bend: which modules are loaded and how much is installed."""

import subprocess
import sys

from benchmarks.distributions import core_distributions

HEAVY = {
    *("aiohttp", "yarl", "jsonschema_rs", "rich", "xllamacpp", "tomllib", "yaml"),
    *("mcp", "anyio", "openai", "anthropic", "httpx", "httpx2", "pydantic"),
}
"""Dependencies, and what people may have installed beside them; asyncio itself loads ssl and subprocess."""
ADAPTERS = ("fanfold.config", "fanfold.mcp", "fanfold.providers", "fanfold.stores", "fanfold.testing", "fanfold.tools")
MAX_DISTRIBUTIONS = 15


def modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh process has loaded once it has run `code`."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_all_public_names_together_load_nothing_heavy() -> None:
    loaded = modules_after("from fanfold import *\nAgent, Session, execute_pipeline")
    assert {"fanfold.agent", "fanfold.session.session"} <= loaded
    assert loaded & {*HEAVY, "click"} == set()


def test_adapters_wait_until_an_agent_needs_them() -> None:
    loaded = modules_after("from fanfold import Agent, Session, SessionOptions, Workflow, execute_pipeline")
    assert [name for name in sorted(loaded) if name.startswith(ADAPTERS)] == []


def test_a_name_that_is_not_used_is_not_loaded() -> None:
    loaded = modules_after("from fanfold import Usage")
    assert "fanfold.contracts.messages" in loaded
    assert loaded & {"asyncio", "fanfold.agent", "fanfold.session"} == set()


def test_printing_the_version_loads_nothing_heavy() -> None:
    loaded = modules_after("from fanfold.cli.main import run\nassert run(['--version']) == 0")
    assert "click" in loaded
    assert loaded & {*HEAVY, "fanfold.agent"} == set()
    assert [name for name in sorted(loaded) if name.startswith(ADAPTERS)] == []


def test_the_core_stays_a_small_installation() -> None:
    found = core_distributions()
    assert {"fanfold", "aiohttp", "yarl"} <= found
    assert len(found) <= MAX_DISTRIBUTIONS
