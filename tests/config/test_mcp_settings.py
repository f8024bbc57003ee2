"""Blocks of MCP servers and folders of agents in a configuration: what they mean, and every fault with its place."""

from pathlib import Path

import pytest

from fanfold.config.discovery import settings_of
from fanfold.contracts.settings import McpServerSettings, Settings
from fanfold.errors import ConfigError

EVERY_KEY_ACL = """
agent_dirs = ["agents", "/srv/agents"]

mcp_servers "docs" {
  command    = "uvx"
  args       = ["docs-server", "--quiet"]
  env        = { TOKEN = env("DOCS_TOKEN"), MODE = "fast" }
  timeout_ms = 5000
}
mcp_servers "far-away" {
  url     = "https://mcp.example.com/mcp"
  headers = { Authorization = concat("Bearer ", env("DOCS_TOKEN")) }
}
"""

EVERY_KEY_TOML = """
agent_dirs = ["agents", "/srv/agents"]

[mcp_servers.docs]
command = "uvx"
args = ["docs-server", "--quiet"]
env = { TOKEN = { env = "DOCS_TOKEN" }, MODE = "fast" }
timeout_ms = 5000

[mcp_servers.far-away]
url = "https://mcp.example.com/mcp"
headers = { Authorization = { concat = ["Bearer ", { env = "DOCS_TOKEN" }] } }
"""


def read(text: str, suffix: str = ".acl") -> Settings:
    return settings_of(text, suffix, f"agent{suffix}", {"DOCS_TOKEN": "t-1"})


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as told:
        read(text)
    return told.value.problems


@pytest.mark.parametrize(("text", "suffix"), [(EVERY_KEY_ACL, ".acl"), (EVERY_KEY_TOML, ".toml")])
def test_every_key_is_read_from_either_syntax(text: str, suffix: str) -> None:
    settings = read(text, suffix)
    assert settings.agent_dirs == ("agents", "/srv/agents")
    docs, far = settings.mcp_servers["docs"], settings.mcp_servers["far-away"]
    assert docs == McpServerSettings(
        name="docs",
        command="uvx",
        args=("docs-server", "--quiet"),
        env={"TOKEN": "t-1", "MODE": "fast"},
        timeout_ms=5000,
        place=docs.place,
    )
    assert far.headers == {"Authorization": "Bearer t-1"}
    assert (far.url, far.command, far.timeout_ms) == ("https://mcp.example.com/mcp", None, 60_000)
    assert docs.place.startswith(f"agent{suffix}:")


def test_without_them_there_are_none() -> None:
    settings = read("")
    assert (settings.agent_dirs, settings.mcp_servers) == ((), {})


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ('"a" { }', "1:17: mcp_servers.a.command or url is needed: the program to start, or the address to call"),
        ('"a" { command = 5 }', "1:29: mcp_servers.a.command must be a string, found a whole number"),
        ('"a" { url = "ftp://x" }', "1:19: mcp_servers.a.url must be a URL such as http://localhost:8000/v1"),
        ('"a__b" { command = "x" }', "1:20: mcp_servers.a__b: a server's name must be of letters, digits"),
        ('"a.b" { command = "x" }', '1:19: mcp_servers."a.b": a server\'s name must be of letters, digits'),
        ('"a" { command = "x", comand = "y" }', "unknown key 'comand' in mcp_servers.a; did you mean 'command'?"),
        ('"a" { command = "x", timeout_ms = 0 }', "mcp_servers.a.timeout_ms must be at least 1"),
        ('"a" { command = "x", args = "y" }', "mcp_servers.a.args must be a list of strings, found a string"),
        ('"a" { command = "x", env = { A = 1 } }', "mcp_servers.a.env.A must be a string, found a whole number"),
        ('"a" { command = "x", env = { "A=B" = "1" } }', "mcp_servers.a.env must name variables without '='"),
        ('"a" { command = "x", headers = { A = "1" } }', "mcp_servers.a.headers have no meaning for a command"),
        ('"a" { url = "http://x", args = ["y"] }', "mcp_servers.a.args have no meaning for a url"),
        ('"a" { url = "http://x", env = { A = "1" } }', "mcp_servers.a.env has no meaning for a url"),
        ('"a" { url = "http://x", headers = { "A B" = "1" } }', "is not the name of an HTTP header"),
        ('"a" { url = "http://x", headers = { A = "é" } }', "mcp_servers.a.headers must not give A"),
        ('"a" { command = "x", env = { A = env("NONE") } }', "needs the environment variable NONE, which is not set"),
    ],
)
def test_a_fault_is_told_once_and_with_its_place(block: str, problem: str) -> None:
    found = problems(f"mcp_servers {block}".replace(", ", "\n").replace("{ }", "{\n}"))
    assert len(found) == 1
    assert problem in found[0].replace("agent.acl:", "")


def test_a_command_and_an_address_exclude_each_other() -> None:
    found = problems('mcp_servers "a" {\n  command = "x"\n  url = "http://secret@x"\n}')
    assert found == (
        "agent.acl:3:3: mcp_servers.a.url and command exclude each other: "
        "a server is started here or called at its address",
    )


def test_names_that_rules_cannot_tell_apart_are_refused() -> None:
    found = problems('mcp_servers "git" {\n command = "x"\n}\nmcp_servers "Git" {\n command = "y"\n}')
    assert found == ("agent.acl:4:19: mcp_servers.Git differs from 'git' by case only",)


@pytest.mark.parametrize("value", ['"agents"', "[1]", '[""]'])
def test_folders_of_agents_are_a_list_of_texts(value: str) -> None:
    assert "agent_dirs" in problems(f"agent_dirs = {value}")[0]


def test_a_file_is_enough_to_say_it(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(EVERY_KEY_TOML)
    text = (tmp_path / "agent.toml").read_text()
    assert set(read(text, ".toml").mcp_servers) == {"docs", "far-away"}
