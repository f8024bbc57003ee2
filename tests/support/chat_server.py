"""ChatServer: a real HTTP server on loopback that speaks chat-completions and Messages.

    async with ChatServer([Say("hello"), Http(status=429)]) as server:
        ... server.base_url ... server.requests ...

Script: a list of answers, used in order and then followed by the rule, or a function of the request's JSON.
The rule: text is `h:` + the first 16 hex digits of the SHA-256 of the last message's text.
`[[tool=NAME*K {json}]]` in the newest user message asks K times (default 1) for NAME, if it is among the
tools; `$k` becomes the round. A JSON-schema response format or a forced tool gets the least object that fits.
As a program (`python -m tests.support.chat_server`) it prints `PORT <number>` and serves by the rule.
"""

import argparse
import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

Json = dict[str, Any]
_TOOL = re.compile(r"\[\[tool=([\w.-]+)(?:\*(\d+))?(?:\s+(\{.*?\}))?\]\]", re.DOTALL)
_USAGE = (12, 8)


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str = "{}"
    id: str = "call_1"


@dataclass(frozen=True, slots=True)
class Say:
    """A well-formed reply, put into whichever wire and mode was asked for."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    stop: str = ""
    """In the wire's own words; empty: what fits the reply."""
    usage: tuple[int, int] | None = _USAGE
    """Prompt and completion tokens; None: the field is missing."""
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Http:
    """Exactly these bytes. `pieces` are written one by one; then the answer ends properly, is left without an end
    (`then="hang"`), goes on with its last piece for ever (`"repeat"`), or its connection is broken off (`"break"`)."""

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    then: str = "end"
    pause_seconds: float = 0.0
    """After each piece."""


def events(*items: object, done: bool = False) -> Http:
    """A stream of server-sent events, one piece each."""
    pieces = [b"data: " + json.dumps(item).encode() + b"\n\n" for item in items]
    if done:
        pieces.append(b"data: [DONE]\n\n")
    return Http(tuple(pieces), headers={"Content-Type": "text/event-stream"})


Answer = Say | Http
Script = Sequence[Answer] | Callable[[Json], Answer]


@dataclass(slots=True)
class Request:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        found: Json = json.loads(self.body)
        return found


class ChatServer:
    def __init__(self, script: Script = (), *, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        """Distinct client connections seen."""
        self._script = script if callable(script) else _in_order(script)
        self._port = port
        self._peers: set[object] = set()
        self._disconnects = 0
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        """For the chat-completions wire; the Messages wire takes it too."""
        return f"{self.origin}/v1"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{path:.*}", self._serve)
        # The handler of a request is cancelled when its client goes away: that is how disconnects are seen.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=1024).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def request_count(self, at_least: int) -> None:
        """Return when that many requests have arrived."""
        await self._until(lambda: len(self.requests) >= at_least)

    async def disconnects(self, at_least: int = 1) -> None:
        """Return when that many clients went away before their answer had ended."""
        await self._until(lambda: self._disconnects >= at_least)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        request = Request(http.path_qs, dict(http.headers), await http.read())
        self.requests.append(request)
        self._peers.add(http.transport)
        self.connections = len(self._peers)
        self._changed.set()
        try:
            asked = request.json
            answer = self._script(asked)
            if isinstance(answer, Say):
                await asyncio.sleep(answer.delay_seconds)
                answer = _spoken(answer, asked, is_messages=http.path.endswith("/messages"))
            return await _write(answer, http)
        except (asyncio.CancelledError, ConnectionError):
            self._disconnects += 1
            self._changed.set()
            raise


async def _write(answer: Http, http: web.Request) -> web.StreamResponse:
    headers = {"Content-Type": "application/json", **answer.headers}
    if answer.then == "end" and len(answer.pieces) <= 1:
        return web.Response(status=answer.status, headers=headers, body=b"".join(answer.pieces))
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(http)
    for piece in answer.pieces:
        await response.write(piece)
        await asyncio.sleep(answer.pause_seconds)
    while answer.then == "repeat":
        await response.write(answer.pieces[-1])
        await asyncio.sleep(answer.pause_seconds)
    if answer.then == "hang":
        await asyncio.Event().wait()
    if answer.then == "break" and http.transport is not None:
        http.transport.close()
    return response


def _in_order(answers: Iterable[Answer]) -> Callable[[Json], Answer]:
    remaining = iter(answers)
    return lambda asked: next(remaining, None) or by_rule(asked)


# ---- the rule ----------------------------------------------------------------------------------------------


def by_rule(asked: Json) -> Say:
    messages: list[Json] = asked.get("messages") or [{}]
    rounds, prompt = _since_user(messages)
    functions = {tool["name"]: tool for tool in (each.get("function") or each for each in asked.get("tools") or ())}
    wanted = _TOOL.search(prompt)
    if wanted and wanted[1] in functions and rounds < int(wanted[2] or 1):
        arguments = (wanted[3] or "{}").replace("$k", str(rounds))
        return Say(calls=(Call(wanted[1], arguments, f"call_{rounds}_{_digest(prompt)[:8]}"),))
    choice = asked.get("tool_choice")
    forced: str = (choice.get("function") or choice).get("name", "") if isinstance(choice, dict) else ""
    if forced in functions:
        schema = functions[forced].get("parameters") or functions[forced].get("input_schema") or {}
        return Say(calls=(Call(forced, json.dumps(least(schema)), f"call_f_{_digest(prompt)[:8]}"),))
    form = asked.get("response_format") or {}
    if form.get("type") == "json_schema":
        return Say(json.dumps(least(form["json_schema"]["schema"])))
    return Say(f"h:{_digest(_text_of(messages[-1]))[:16]}")


def _since_user(messages: list[Json]) -> tuple[int, str]:
    """How many tool results, as messages or as blocks, follow the newest user message; and its text."""
    results = 0
    for message in reversed(messages):
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        found = sum(block.get("type") == "tool_result" for block in blocks)
        if message.get("role") == "user" and found < max(1, len(blocks)):
            return results + found, _text_of(message)
        results += found + (message.get("role") == "tool")
    return results, ""


def _text_of(message: Json) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(block.get("text") or block.get("content") or "" for block in content)
    return str(content or "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def least(schema: Json) -> Any:
    """The least value that a plain schema allows."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema else None)
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            properties = schema.get("properties", {})
            return {name: least(properties.get(name, {})) for name in schema.get("required") or properties}
        case "array":
            return [least(schema.get("items", {}))] * schema.get("minItems", 0)
        case "string":
            return "x" * max(1, schema.get("minLength", 1))
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case _:
            return None


# ---- the wires ---------------------------------------------------------------------------------------------


def _spoken(say: Say, asked: Json, *, is_messages: bool) -> Http:
    is_stream = bool(asked.get("stream"))
    if is_messages:
        return events(*_message_events(say)) if is_stream else _whole(_message(say))
    return events(*_chunks(say), done=True) if is_stream else _whole(_completion(say))


def _whole(body: Json) -> Http:
    return Http((json.dumps(body).encode(),))


def _chat_usage(say: Say) -> Json:
    if say.usage is None:
        return {}
    prompt, completion = say.usage
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"usage": usage}


def _chat_calls(say: Say) -> list[Json]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in say.calls
    ]


def _chat_stop(say: Say) -> str:
    return say.stop or ("tool_calls" if say.calls else "stop")


def _completion(say: Say) -> Json:
    message: Json = {"role": "assistant", "content": say.text or None}
    if say.reasoning:
        message["reasoning_content"] = say.reasoning
    if say.calls:
        message["tool_calls"] = _chat_calls(say)
    choice = {"index": 0, "message": message, "finish_reason": _chat_stop(say)}
    return {"id": "c1", "object": "chat.completion", "model": "fake", "choices": [choice], **_chat_usage(say)}


def _chunks(say: Say) -> Iterable[Json]:
    def chunk(delta: Json, stop: str | None = None) -> Json:
        return {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _halves(say.reasoning):
        yield chunk({"reasoning_content": piece})
    for piece in _halves(say.text):
        yield chunk({"content": piece})
    for index, call in enumerate(_chat_calls(say)):
        first, *rest = _halves(call["function"]["arguments"])
        function = {**call["function"], "arguments": first}
        yield chunk({"tool_calls": [{**call, "index": index, "function": function}]})
        for piece in rest:
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _chat_stop(say))
    if say.usage is not None:
        yield {"id": "c1", "choices": [], **_chat_usage(say)}


def _blocks(say: Say) -> list[Json]:
    thinking = [{"type": "thinking", "thinking": say.reasoning, "signature": "s"}] if say.reasoning else []
    text = [{"type": "text", "text": say.text}] if say.text else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in say.calls
    ]
    return [*thinking, *text, *calls]


def _message(say: Say) -> Json:
    stop = say.stop or ("tool_use" if say.calls else "end_turn")
    usage = {} if say.usage is None else {"usage": {"input_tokens": say.usage[0], "output_tokens": say.usage[1]}}
    return {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "content": _blocks(say),
        "stop_reason": stop,
        **usage,
    }


def _message_events(say: Say) -> Iterable[Json]:
    message = _message(say)
    usage: Json = message.get("usage", {})
    started = {"usage": {**usage, "output_tokens": 1}} if usage else {}
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, **started}}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        field, kind = {
            "text": ("text", "text_delta"),
            "thinking": ("thinking", "thinking_delta"),
            "tool_use": ("partial_json", "input_json_delta"),
        }[block["type"]]
        whole = json.dumps(block["input"]) if block["type"] == "tool_use" else block[field]
        empty: Json = {"input": {}} if block["type"] == "tool_use" else {field: ""}
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        for piece in _halves(whole):
            yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, field: piece}}
        yield {"type": "content_block_stop", "index": index}
    ended = {"usage": {"output_tokens": usage["output_tokens"]}} if usage else {}
    yield {"type": "message_delta", "delta": {"stop_reason": message["stop_reason"]}, **ended}
    yield {"type": "message_stop"}


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


async def _serve_forever(port: int) -> None:
    async with ChatServer(port=port) as server:
        print(f"PORT {server.base_url.split(':')[-1].removesuffix('/v1')}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(_serve_forever(parser.parse_args().port))
