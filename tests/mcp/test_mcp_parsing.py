"""Servers that a host gives as a mapping, and what the SDK's absence means."""

import subprocess
import sys
from typing import Any

import pytest

from fanfold.contracts.settings import McpServerSettings
from fanfold.errors import ConfigError
from fanfold.mcp.parsing import parse_server


def stdio(**more: Any) -> dict[str, Any]:
    return {"type": "stdio", "command": "uvx", **more}


def test_every_key_is_read() -> None:
    given = {
        "name": "docs",
        "transport": stdio(args=["docs-server"], env={"A": "own", "B": "2"}),
        "env": {"A": "1", "C": "3"},
        "timeout_ms": 5000,
    }
    assert parse_server(given) == McpServerSettings(
        name="docs", command="uvx", args=("docs-server",), env={"A": "own", "B": "2", "C": "3"}, timeout_ms=5000
    )


@pytest.mark.parametrize("kind", ["http", "streamable-http"])
def test_both_names_of_http_mean_the_same(kind: str) -> None:
    transport = {"type": kind, "url": "https://mcp.example.com/mcp", "headers": {"X-Key": "k"}}
    settings = parse_server({"name": "far", "transport": transport})
    assert settings == McpServerSettings(name="far", url="https://mcp.example.com/mcp", headers={"X-Key": "k"})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "MCP server: Expected `object`, got `array`"),
        ({"name": "a"}, "MCP server: Object missing required field `transport`"),
        ({"name": 1, "transport": stdio()}, "MCP server: name: Expected `str`, got `int`"),
        ({"name": "a", "transport": {"type": "sse"}}, "MCP server: transport.type: Invalid enum value 'sse'"),
        ({"name": "a", "transport": stdio(args="x")}, "MCP server: transport.args: Expected `array`, got `str`"),
        ({"name": "a", "transport": stdio(cwd="x")}, "transport: Object contains unknown field `cwd`"),
        ({"name": "a", "transport": {"type": "stdio"}}, "MCP server 'a': command or url is needed"),
        ({"name": "a", "transport": {"type": "http", "command": "x"}}, "MCP server 'a': a http server needs url"),
        ({"name": "a", "transport": stdio(url="http://x")}, "MCP server 'a': url and command exclude each other"),
        ({"name": "a b", "transport": stdio()}, "MCP server 'a b': name must be of letters"),
        ({"name": "a", "transport": stdio(), "timeout_ms": 0}, "MCP server 'a': timeout_ms must be from 1 to"),
        ({"name": "a", "transport": stdio(env={"A": "\0"})}, "MCP server 'a': env must name variables"),
        ({"name": "a", "transport": stdio(args=["\0"])}, "MCP server 'a': args must not hold a NUL character"),
        ({"name": "a", "transport": stdio(command=" ")}, "MCP server 'a': command must not be empty"),
        (
            {"name": "a", "transport": {"type": "http", "url": "http://x", "headers": {"A": "secret\n"}}},
            "MCP server 'a': headers must not give A line ends",
        ),
    ],
)
def test_a_fault_is_named_and_no_secret_is_shown(given: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_server(given)
    assert told.value.problems[0].startswith(problem) or problem in told.value.problems[0]
    assert "secret" not in str(told.value)


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_without_the_extra_the_error_says_how_to_get_it() -> None:
    assert (
        run(
            "import asyncio, sys\n"
            "sys.modules['mcp'] = None\n"
            "from fanfold.contracts.settings import McpServerSettings\n"
            "from fanfold.errors import MissingExtraError\n"
            "from fanfold.mcp.connect import connect\n"
            "try:\n"
            "    asyncio.run(connect(McpServerSettings(name='a', command='true')))\n"
            "except MissingExtraError as error:\n"
            "    print(error)\n"
        )
        == "the MCP client is not installed; install it with: pip install '.[mcp]' in the checkout"
    )


def test_the_sdk_is_not_loaded_before_a_server_is_wanted() -> None:
    loaded = run("import sys\nimport fanfold.mcp.connect, fanfold.mcp.parsing\nprint(*sys.modules)").split()
    assert "fanfold.mcp.connect" in loaded
    assert not {"mcp", "mcp_types", "anyio", "httpx2", "pydantic", "fanfold.mcp.server"} & set(loaded)
