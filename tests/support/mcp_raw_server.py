"""An MCP server of bare lines, which does what no SDK would: `python tests/support/mcp_raw_server.py [manner ...]`.

Manners of the start: `silent` (answers nothing), `exits`, `old` (dies of anything but `initialize`, as some servers of
2025 do), `pages=<number>` (of the list, `endless` too), `unsound` (one tool breaks the protocol), `banner` (prints
before it speaks), `marks=<file>` (gets a line with each start), `pids=<file>`
(gets its process number). Any other word means nothing.
It reads only the handshake of 2025; what a tool does its name says.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

MANNERS = {name: value for name, _, value in (each.partition("=") for each in sys.argv[1:])}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS: dict[str, Any] = {
    "echo": SCHEMA,
    "garbage": SCHEMA,
    "flood": SCHEMA,
    "wrong": SCHEMA,
    "mute": SCHEMA,
    "asleep": SCHEMA,
    "blank": SCHEMA,
    "refuse": SCHEMA,
    "hangup": SCHEMA,
    "deaf": SCHEMA,
    "chatter": SCHEMA,
    "last_word": SCHEMA,
    "ask_back": SCHEMA,
    "daemon": SCHEMA,
    "loud": SCHEMA,
    "seen": SCHEMA,
    "rename": SCHEMA,
    "vérité/été": SCHEMA,
    "a.b": SCHEMA,
    "a/b": SCHEMA,
    "a_b": SCHEMA,
    "x" * 200: SCHEMA,
    "x" * 199 + "y": SCHEMA,
    "__init__": SCHEMA,
    "": SCHEMA,
    "remote_ref": {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}},
    "draft_7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "definitions": {"n": {"type": "number"}},
        "properties": {"n": {"$ref": "#/definitions/n"}},
    },
    "huge_schema": {"type": "object", "description": "d" * 100_000},
    "long_story": SCHEMA,
}
methods: list[str] = []


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def reply(request: dict[str, Any], result: Any) -> None:
    say({"id": request["id"], "result": result})


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def initialize(request: dict[str, Any]) -> None:
    capabilities = {"tools": {"listChanged": True}}
    info = {"name": "raw", "version": "1"}
    reply(request, {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info})


def list_tools(request: dict[str, Any]) -> None:
    tools = [{"name": name, "inputSchema": schema} for name, schema in TOOLS.items()]
    tools[-1]["description"] = "word " * 10_000
    if "unsound" in MANNERS:
        tools.append({"name": "text", "inputSchema": {"type": "string"}})
    pages = MANNERS.get("pages", "1")
    if pages == "endless":
        reply(request, {"tools": [], "nextCursor": str(time.monotonic_ns())})
        return
    page = int((request.get("params") or {}).get("cursor") or 0)
    count = int(pages)
    size = -(-len(tools) // count)
    more = {"nextCursor": str(page + 1)} if page + 1 < count else {}
    reply(request, {"tools": tools[page * size : (page + 1) * size], **more})


def call(request: dict[str, Any]) -> None:
    name, args = request["params"]["name"], request["params"].get("arguments") or {}
    match name:
        case "garbage":
            os.write(
                1, b'\xff\xfe no JSON\n{"jsonrpc": "2.0"\n[1, 2]\n\n{"id": {}, "result": 1}\n' + b"[" * 100_000 + b"\n"
            )
            reply(request, text("still here"))
        case "flood":
            for _ in range(64):
                os.write(1, b"x" * 1024 * 1024)
            os.write(1, b"\n")
        case "wrong":
            reply(request, {"content": "no list", "isError": "perhaps"})
        case "mute":
            pass
        case "asleep":
            time.sleep(1000)
        case "refuse":
            say({"id": request["id"], "error": {"code": -32602, "message": "bad " * 10_000}})
        case "hangup":
            os.close(1)
            signal.pause()
        case "deaf":
            os.close(0)
            signal.pause()
        case "chatter":
            sys.stderr.write("log line\n" * 200_000)
            reply(request, text("said all"))
        case "last_word":
            reply(request, text("farewell"))
            sys.exit(0)
        case "ask_back":
            say({"id": "q-1", "method": "roots/list"})
            answer = json.loads(sys.stdin.readline())
            reply(request, text(f"error {answer['error']['code']}"))
        case "daemon":
            subprocess.Popen(["sleep", args["text"]], start_new_session=True)
            os._exit(7)
        case "blank":
            for _ in range(16):
                os.write(1, b"\n" * 1024 * 1024)
            reply(request, text("said nothing"))
        case "loud":
            notice = {"level": "info", "data": "n" * 1000}
            for _ in range(20_000):
                say({"method": "notifications/message", "params": notice})
            reply(request, text("quiet again"))
        case "seen":
            reply(request, text(" ".join(methods)))
        case "rename":
            TOOLS[args["text"]] = TOOLS.pop("echo", SCHEMA)
            say({"method": "notifications/tools/list_changed"})
            reply(request, text("renamed"))
        case _:
            reply(request, text(f"{name}: {args.get('text', '')}"))


def main() -> None:
    print("I am raw", os.getpid(), file=sys.stderr, flush=True)
    if "exits" in MANNERS:
        print("\x1b[31mno configuration\x1b[0m", file=sys.stderr, flush=True)
        sys.exit(3)
    if "banner" in MANNERS:
        print("Welcome!", flush=True)
    if "pids" in MANNERS:
        with open(MANNERS["pids"], "a") as file:
            file.write(f"{os.getpid()}\n")
    if "marks" in MANNERS:
        with open(MANNERS["marks"], "a") as file:
            print("started", file=file)
    for line in sys.stdin:
        if "silent" in MANNERS:
            continue
        request = json.loads(line)
        methods.append(request.get("method", "?"))
        match request.get("method"):
            case "initialize":
                initialize(request)
            case _ if "old" in MANNERS and methods[0] != "initialize":
                sys.exit("expected initialize")
            case "tools/list":
                list_tools(request)
            case "tools/call":
                call(request)
            case _ if "id" in request:
                say({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})


if __name__ == "__main__":
    main()
