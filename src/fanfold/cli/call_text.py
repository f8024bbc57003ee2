"""A tool call as a person reads it: its name and its arguments, all of them, on one line."""

from fanfold.cli.safe_text import escaped
from fanfold.contracts.codec import encode_json


def call_text(name: str | None, args: object) -> str:
    return f"{name} {escaped(encode_json(args).decode())}" if args else str(name)
