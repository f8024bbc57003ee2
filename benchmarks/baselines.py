"""The bare loops that fanfold is measured against: what a script does that calls the model by itself."""

import importlib
import importlib.util
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from benchmarks.workload import SYSTEM, AddTool, loop_prompt

Ask = Callable[[str], Awaitable[str]]


def _messages(prompt: str) -> list[Any]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]


async def bare_aiohttp(stack: AsyncExitStack, base_url: str) -> Ask:
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    url = f"{base_url}/chat/completions"

    async def ask(prompt: str) -> str:
        async with session.post(url, json={"model": "fake", "messages": _messages(prompt)}) as response:
            text: str = (await response.json())["choices"][0]["message"]["content"]
            return text

    return ask


async def bare_openai_sdk(stack: AsyncExitStack, base_url: str) -> Ask | None:
    """None where the SDK is not installed."""
    if importlib.util.find_spec("openai") is None:
        return None
    sdk = importlib.import_module("openai")
    client = await stack.enter_async_context(sdk.AsyncOpenAI(base_url=base_url, api_key="x", max_retries=0))

    async def ask(prompt: str) -> str:
        reply = await client.chat.completions.create(model="fake", messages=_messages(prompt))
        text: str = reply.choices[0].message.content
        return text

    return ask


async def bare_tool_loop(stack: AsyncExitStack, base_url: str) -> Callable[[int], Awaitable[str]]:
    """A loop of n rounds that appends to one list of messages and sends all of it each time."""
    session = await stack.enter_async_context(aiohttp.ClientSession())
    url, spec = f"{base_url}/chat/completions", AddTool.spec
    tool = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    tools = [{"type": "function", "function": tool}]

    async def run(rounds: int) -> str:
        messages = _messages(loop_prompt(rounds))
        while True:
            body = {"model": "fake", "messages": messages, "tools": tools}
            async with session.post(url, json=body) as response:
                message = (await response.json())["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                text: str = message["content"]
                return text
            for call in message["tool_calls"]:
                args = json.loads(call["function"]["arguments"])
                result = str(args["a"] + args["b"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    return run
