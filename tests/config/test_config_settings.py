"""What a configuration means: keys, defaults, inheritance, secrets, and every fault with its place."""

from collections.abc import Mapping

import msgspec
import pytest

from fanfold.config.discovery import settings_of
from fanfold.contracts.policy import PermissionPolicy
from fanfold.contracts.settings import ModelSettings, ProviderSettings, Secret, Settings
from fanfold.errors import ConfigError

EVERY_KEY_ACL = """
default_model          = "gate/big"
max_parallel_tasks     = 3
max_tool_rounds        = 20
allow_unsandboxed_bash = true

permissions {
  allow   = ["read", "bash(git:*)"]
  deny    = ["read(.env)"]
  ask     = ["write"]
  default = "deny"
}

providers "gate" {
  kind              = "anthropic"
  api_key           = concat("key-", env("TOKEN"))
  base_url          = concat("https://", env("HOST"), "/v1")
  headers           = { "X-Team" = "blue", "X-Empty" = "" }
  timeout_ms        = 1000
  max_attempts      = 2
  structured_output = "forced_tool"

  models "big" {
    name              = "big-2026"
    api_key           = env("BIG_TOKEN")
    base_url          = "http://127.0.0.1:8000"
    headers           = { "X-Model" = "big" }
    tool_call         = false
    structured_output = "prompt"
    temperature       = 0.5
    limit             = { context = 32000, output = 2048 }
  }
  models "org/small.1" {
  }
}

providers "local" {
  threads = 2
  slots   = 1
}
"""

EVERY_KEY_TOML = """
default_model = "gate/big"
max_parallel_tasks = 3
max_tool_rounds = 20
allow_unsandboxed_bash = true

[permissions]
allow = ["read", "bash(git:*)"]
deny = ["read(.env)"]
ask = ["write"]
default = "deny"

[providers.gate]
kind = "anthropic"
api_key = { concat = ["key-", { env = "TOKEN" }] }
base_url = { concat = ["https://", { env = "HOST" }, "/v1"] }
headers = { X-Team = "blue", X-Empty = "" }
timeout_ms = 1000
max_attempts = 2
structured_output = "forced_tool"

[providers.gate.models.big]
name = "big-2026"
api_key = { env = "BIG_TOKEN" }
base_url = "http://127.0.0.1:8000"
headers = { X-Model = "big" }
tool_call = false
structured_output = "prompt"
temperature = 0.5
limit = { context = 32000, output = 2048 }

[providers.gate.models."org/small.1"]

[providers.local]
threads = 2
slots = 1
"""

ENVIRON = {"TOKEN": "t0\n", "HOST": "gate.example", "BIG_TOKEN": "t1"}


def read(text: str, environ: Mapping[str, str] | None = None, suffix: str = ".acl") -> Settings:
    return settings_of(text, suffix, f"agent{suffix}", environ or {})


def problems_of(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, environ)
    return list(caught.value.problems)


def without_places(settings: Settings) -> object:
    """Plain data with no `place` and `source`."""

    def bare(value: object) -> object:
        if isinstance(value, dict):
            return {key: bare(item) for key, item in value.items() if key not in ("place", "source")}
        return value

    return bare(msgspec.to_builtins(settings))


def test_every_key_arrives() -> None:
    settings = read(EVERY_KEY_ACL, ENVIRON)

    assert settings == Settings(
        default_model="gate/big",
        max_parallel_tasks=3,
        max_tool_rounds=20,
        allow_unsandboxed_bash=True,
        permissions=PermissionPolicy(("read", "bash(git:*)"), ("read(.env)",), ("write",), "deny"),
        source="agent.acl",
        providers={
            "openai": settings.providers["openai"],
            "anthropic": settings.providers["anthropic"],
            "local": ProviderSettings(name="local", kind="local", threads=2, slots=1, place="agent.acl:37"),
            "gate": ProviderSettings(
                name="gate",
                kind="anthropic",
                api_key=Secret("key-t0", "env TOKEN (agent.acl:16)"),
                base_url="https://gate.example/v1",
                headers={"X-Team": "blue", "X-Empty": ""},
                timeout_ms=1000,
                max_attempts=2,
                structured_output="forced_tool",
                place="agent.acl:14",
                models={
                    "big": ModelSettings(
                        id="big",
                        name="big-2026",
                        api_key=Secret("t1", "env BIG_TOKEN (agent.acl:25)"),
                        base_url="http://127.0.0.1:8000",
                        headers={"X-Model": "big"},
                        tool_call=False,
                        structured_output="prompt",
                        temperature=0.5,
                        context_tokens=32000,
                        max_output_tokens=2048,
                    ),
                    "org/small.1": ModelSettings(id="org/small.1", structured_output="forced_tool"),
                },
            ),
        },
    )


def test_acl_and_toml_twins_give_equal_settings() -> None:
    acl, toml = read(EVERY_KEY_ACL, ENVIRON), read(EVERY_KEY_TOML, ENVIRON, ".toml")

    assert without_places(acl) == without_places(toml)
    key = toml.providers["gate"].models["big"].api_key
    assert key is not None
    assert key.source == "env BIG_TOKEN (agent.toml:24)"
    assert toml.providers["gate"].place == "agent.toml:13"


def test_an_empty_text_gives_the_built_in_providers() -> None:
    settings = read("")

    assert without_places(settings) == without_places(Settings(providers=settings.providers))
    assert settings.providers == {
        "openai": ProviderSettings(
            name="openai",
            kind="openai",
            api_key=Secret("", "env OPENAI_API_KEY"),
            base_url="https://api.openai.com/v1",
        ),
        "anthropic": ProviderSettings(
            name="anthropic",
            kind="anthropic",
            api_key=Secret("", "env ANTHROPIC_API_KEY"),
            base_url="https://api.anthropic.com",
        ),
        "local": ProviderSettings(name="local", kind="local"),
    }


def test_built_in_providers_read_their_environment() -> None:
    environ = {"OPENAI_API_KEY": "k1", "OPENAI_BASE_URL": "http://gate/v1", "ANTHROPIC_API_KEY": "k2"}
    providers = read("", environ).providers

    assert providers["openai"].api_key == Secret("k1", "env OPENAI_API_KEY")
    assert providers["openai"].base_url == "http://gate/v1"
    assert providers["anthropic"].api_key == Secret("k2", "env ANTHROPIC_API_KEY")


def test_an_override_of_a_built_in_provider_inherits_what_it_leaves_out() -> None:
    openai = read('providers "openai" { timeout_ms = 5 }', {"OPENAI_API_KEY": "k"}).providers["openai"]

    assert (openai.timeout_ms, openai.base_url) == (5, "https://api.openai.com/v1")
    assert openai.api_key == Secret("k", "env OPENAI_API_KEY")


def test_an_override_with_another_wire_inherits_nothing() -> None:
    text = 'providers "openai" { kind = "anthropic", base_url = "http://gate" }'
    openai = read(text, {"OPENAI_API_KEY": "k"}).providers["openai"]

    assert openai.api_key is None


def test_kind_is_openai_unless_the_name_or_the_key_says_otherwise() -> None:
    providers = read('providers "x" { base_url = "http://x" }\nproviders "anthropic" { }').providers

    assert (providers["x"].kind, providers["anthropic"].kind) == ("openai", "anthropic")


def test_a_missing_key_is_no_error_until_it_is_used() -> None:
    settings = read('\n\nproviders "x" {\n  api_key = env("NOPE")\n  base_url = "http://x"\n}')

    assert settings.providers["x"].api_key == Secret("", "env NOPE (agent.acl:4)")


def test_null_means_no_key_at_all() -> None:
    text = 'providers "openai" { api_key = null, base_url = "http://localhost:1/v1" }'

    assert read(text, {"OPENAI_API_KEY": "k"}).providers["openai"].api_key is None


def test_null_elsewhere_reads_as_left_out() -> None:
    assert read("max_parallel_tasks = null\nmax_tool_rounds = null\npermissions = null") == read("")


@pytest.mark.parametrize(
    "line",
    [
        'api_key = "sk-secret" "sk-secret"',
        'api_key = "sk-secret',
        "api_key = 'sk-secret'",
        "api_key = sk-secret",
        "api_key = 1sk-secret",
        'api_key = ["sk-secret"]',
        'api_key = { key = "sk-secret" }',
        'api_key = env("sk-secret")',
        'api_key = concat("sk-secret", 1)',
        'api_key = "sk-secret\\q"',
        'api_key "sk-secret"',
        "api_key sk-secret",
        'kind = "sk-secret"',
        'base_url = "sk-secret"',
        'headers = { A = "sk-secret\\n" }',
    ],
)
def test_no_message_shows_a_key(line: str) -> None:
    problems = problems_of(f'providers "openai" {{\n  {line}\n}}')

    assert "secret" not in "\n".join(problems)


def test_no_repr_shows_a_key() -> None:
    assert "sk-secret" not in repr(read('providers "openai" { api_key = "sk-secret" }'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # unknown names
        ("max_paralel_tasks = 1", "1:1: unknown key 'max_paralel_tasks'; did you mean 'max_parallel_tasks'?"),
        ('provider "openai" { }', "1:1: unknown key 'provider'; did you mean 'providers'?"),
        (
            "permissions { zzz = 1 }",
            "1:15: unknown key 'zzz' in permissions; known: allow, ask, default, deny",
        ),
        (
            'providers "local" {\n  treads = 2\n}',
            "2:3: unknown key 'treads' in providers.local; did you mean 'threads'?",
        ),
        (
            'providers "openai" {\n models "a.b" {\n limit { contxt = 1 } } }',
            """3:10: unknown key 'contxt' in providers.openai.models."a.b".limit; did you mean 'context'?""",
        ),
        (
            'providers "openai" { api_key = evn("X") }',
            "1:32: unknown function 'evn'; did you mean 'env'?",
        ),
        # wrong types
        ("default_model = 5", "1:17: default_model must be a string, found a whole number"),
        ('max_parallel_tasks = "8"', "1:22: max_parallel_tasks must be a whole number, found a string"),
        ("max_tool_rounds = 1.5", "1:19: max_tool_rounds must be a whole number, found a decimal number"),
        ("max_tool_rounds = true", "1:19: max_tool_rounds must be a whole number, found true or false"),
        ('max_tool_rounds = env("N")', "1:19: max_tool_rounds must be a whole number, found env(...)"),
        ("allow_unsandboxed_bash = []", "1:26: allow_unsandboxed_bash must be true or false, found a list"),
        ('permissions { ask = "read" }', "1:21: permissions.ask must be a list of strings, found a string"),
        ("permissions { deny = [1] }", "1:23: permissions.deny[0] must be a string, found a whole number"),
        ("permissions = []", "1:15: permissions must be a table { ... }, found a list"),
        ("providers = 1", "1:13: providers must be a table { ... }, found a whole number"),
        ('providers { kind = "x" }', "1:20: providers.kind must be a table { ... }, found a string"),
        (
            'providers "openai" { api_key = 5 }',
            '1:32: providers.openai.api_key must be a string or env("NAME"), found a whole number',
        ),
        (
            'providers "openai" { headers = { A = 1 } }',
            "1:38: providers.openai.headers.A must be a string, found a whole number",
        ),
        (
            'providers "openai" { models "a" { temperature = "hot" } }',
            "1:49: providers.openai.models.a.temperature must be a number, found a string",
        ),
        # wrong values
        ("max_parallel_tasks = 0", "1:22: max_parallel_tasks must be at least 1"),
        ("max_tool_rounds = 9223372036854775808", "1:19: max_tool_rounds must be at most 9,223,372,036,854,775,807"),
        ('default_model = ""', "1:17: default_model must not be empty"),
        ('permissions { default = "no" }', '1:25: permissions.default must be one of "allow", "deny", "ask"'),
        (
            'permissions { deny = ["bash("] }',
            "1:23: permission rule 'bash(' is neither `tool` nor `tool(pattern)`",
        ),
        (
            'providers "openai" { models "a" { temperature = -1 } }',
            "1:49: providers.openai.models.a.temperature must be 0 or more, and finite",
        ),
        (
            'providers "openai" { base_url = "localhost:8000" }',
            "1:33: providers.openai.base_url must be a URL such as http://localhost:8000/v1",
        ),
        (
            'providers "openai" { base_url = "http://[" }',
            "1:33: providers.openai.base_url must be a URL such as http://localhost:8000/v1",
        ),
        (
            'providers "openai" { api_key = "" }',
            "1:22: providers.openai.api_key is empty; leave it out if the endpoint needs no key",
        ),
        (
            'providers "openai" { headers = { "a b" = "x" } }',
            '1:34: providers.openai.headers."a b" is not the name of an HTTP header',
        ),
        (
            'providers "openai" { headers = { A = "x\\r\\nB: y" } }',
            "1:38: providers.openai.headers.A must not contain line ends or control characters",
        ),
        (
            'providers "openai" { base_url = env("NOPE") }',
            "1:33: providers.openai.base_url needs the environment variable NOPE, which is not set",
        ),
        (
            'providers "openai" { headers = { A = concat("Bearer ", env("NOPE")) } }',
            "1:38: providers.openai.headers.A needs the environment variable NOPE, which is not set",
        ),
        (
            'providers "openai" { api_key = env("A", "B") }',
            '1:32: env() takes the name of one environment variable, such as env("OPENAI_API_KEY")',
        ),
        (
            'providers "openai" { api_key = concat("a", 1) }',
            "1:44: concat() joins strings, found a whole number",
        ),
        # what must fit together
        ('providers "x" { }', "1:15: providers.x needs base_url, the address that it calls"),
        (
            'providers "a/b" { base_url = "http://x" }',
            """1:17: providers."a/b": a provider's name must not be empty or contain '/'""",
        ),
        ('providers "openai" { slots = 2 }', '1:22: providers.openai.slots has no meaning for kind "openai"'),
        (
            'providers "local" { models "a" { api_key = "k" } }',
            '1:34: providers.local.models.a.api_key has no meaning for kind "local"',
        ),
        (
            'default_model = "gpt-5"',
            "1:17: default_model: model 'gpt-5' must be provider/model-id, such as 'local/default'",
        ),
        (
            'default_model = "opnai/gpt-5"',
            "1:17: default_model: unknown provider 'opnai' in model 'opnai/gpt-5'; did you mean 'openai'?",
        ),
        (
            'providers "openai" { models "gpt-5" { } }\ndefault_model = "openai/gtp-5"',
            "2:17: default_model: unknown model 'gtp-5': provider 'openai' (agent.acl:1) lists its models; "
            "did you mean 'gpt-5'?",
        ),
    ],
)  # fmt: skip
def test_each_fault_has_one_line_that_names_the_thing_and_the_fix(text: str, message: str) -> None:
    assert problems_of(text) == [f"agent.acl:{message}"]


def test_syntax_and_meaning_are_told_together_in_the_order_of_the_file() -> None:
    text = """\
providers "x" {
  timeout_ms = "1"
  base_url = @
  modells = 1
}
default_model = y/z
max_tool_rounds = 0
"""

    assert problems_of(text) == [
        "agent.acl:2:16: providers.x.timeout_ms must be a whole number, found a string",
        "agent.acl:3:14: unexpected character '@'",
        "agent.acl:4:3: unknown key 'modells' in providers.x; did you mean 'models'?",
        "agent.acl:6:17: this bare word is not a value; put strings in double quotes",
        "agent.acl:7:19: max_tool_rounds must be at least 1",
    ]


def test_a_line_that_syntax_broke_is_not_also_called_missing() -> None:
    text = 'providers "x" {\n  base_url = @\n}\nprovidrs "y" = 1\ndefault_model = "y/z"'

    assert problems_of(text) == [
        "agent.acl:2:14: unexpected character '@'",
        "agent.acl:4:10: expected '=' or '{' after this name, found a string",
    ]


URL = "must be a URL such as http://localhost:8000/v1"
PORT = "must have a port from 1 to 65535, or none"
SPACE = "must not contain spaces or control characters"
HOST = "must name a host whose parts have 1 to 63 characters"


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("localhost:8000", URL),
        ("ftp://h/v1", URL),
        ("http:///v1", URL),
        ("http://[::1", URL),
        ("http://h:99999/v1", PORT),
        ("http://h:0/v1", PORT),
        ("http://user:secretpw@h:notaport/v1", PORT),
        ("http://h ost/v1", SPACE),
        (r"http://h/v1\n\rX: y", SPACE),
        (r"http://h/\u00a0", SPACE),
        ("http://..../v1", HOST),
        ("http://" + "a" * 64 + "/v1", HOST),
        ("http://" + ".".join(["a" * 60] * 5) + "/v1", HOST),
    ],
)
def test_an_address_that_no_request_can_have_is_a_fault_that_does_not_show_it(url: str, fault: str) -> None:
    assert problems_of(f'providers "x" {{ base_url = "{url}" }}') == [f"agent.acl:1:28: providers.x.base_url {fault}"]


@pytest.mark.parametrize("url", ["http://[::1]:8000", "https://ünï.example./v1", "http://h:65535", "http://0x7f.1"])
def test_any_other_address_will_do(url: str) -> None:
    assert read(f'providers "x" {{ base_url = "{url}" }}').providers["x"].base_url == url


@pytest.mark.parametrize(
    ("path", "text", "most"),
    [
        ("max_parallel_tasks", "max_parallel_tasks = {}", 10_000),
        ("providers.openai.max_attempts", 'providers "openai" {{\nmax_attempts = {} }}', 100),
        ("providers.openai.timeout_ms", 'providers "openai" {{\ntimeout_ms = {} }}', 86_400_000),
        ("providers.local.slots", 'providers "local" {{\nslots = {} }}', 256),
        ("providers.local.threads", 'providers "local" {{\nthreads = {} }}', 1024),
    ],
)
def test_numbers_have_bounds(path: str, text: str, most: int) -> None:
    read(text.format(most))
    [problem] = problems_of(text.format(most + 1))
    assert problem.endswith(f": {path} must be at most {most:,}")
    [problem] = problems_of(text.format(0))
    assert problem.endswith(f": {path} must be at least 1")


def test_a_key_that_lost_its_name_is_not_shown() -> None:
    for text in (
        "sk-leak-123",
        "sk-leak-123 {",
        'sk-leak-123 "x"',
        "sk-leak-123 4",
        'providers "x" {\n sk-leak-123\n}',
    ):
        assert "leak" not in "\n".join(problems_of(text))
