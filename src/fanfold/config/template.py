"""The `agent.acl` that `fanfold init` writes."""

AGENT_ACL = """\
# Settings of fanfold for this directory and those below it, up to the root of the git checkout.
# A line that starts with `#` and no space is an example: take the `#` away to use it.
# Check the file with `fanfold doctor`.

# The model of every agent that names no other, as provider/model-id.
# local/default is the embedded model: no key, no network, and a stand-in: good for trying things out only.
default_model = "local/default"
#default_model = "openai/gpt-5-mini"
#default_model = "anthropic/claude-sonnet-4-5"

# Steps of one fan-out that run at the same time.
max_parallel_tasks = 8

# Rounds of tool calls in one run; without this line the built-in limits hold.
#max_tool_rounds = 20

# Keys come from the environment, never from this file. A provider that is not used needs no key.
providers "openai" {
  api_key = env("OPENAI_API_KEY")
}

providers "anthropic" {
  api_key = env("ANTHROPIC_API_KEY")
}

# Anything that speaks the chat-completions wire: vLLM, Ollama, llama-server, a gateway.
# Its models are named like ollama/qwen3:8b.
#providers "ollama" {
#  base_url     = "http://localhost:11434/v1"
#  timeout_ms   = 600000
#  max_attempts = 5
#  models "qwen3:8b" {
#    limit = { context = 32768, output = 4096 }
#  }
#}

# What agents may do: `tool` or `tool(pattern)`. deny wins over allow, allow over ask, ask over the default.
#permissions {
#  allow   = ["read", "ls", "search"]
#  deny    = ["read(.env)"]
#  default = "ask"
#}

# `bash` runs inside bubblewrap (no network, writes in the workspace only). Where there is none it refuses,
# unless you let it run with all your rights:
#allow_unsandboxed_bash = true
"""
