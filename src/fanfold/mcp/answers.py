"""What a server answers to a call, as the output that a model reads."""

from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from fanfold.contracts.codec import encode_json
from fanfold.contracts.messages import ToolOutput

MAX_OUTPUT_BYTES = 100 * 1024
_END_BYTES = MAX_OUTPUT_BYTES // 2 - 256
"""Kept of each end of a long output; the rest of the limit is for the line between them."""
_MAX_ERROR_CHARS = 2000
_BROKEN = "\ufffd"
_NEEDS_PERSON = "the tool asks for input that only a person or a model can give; such questions are not passed on"


def output_of(result: CallToolResult | InputRequiredResult) -> ToolOutput:
    """Texts as they are, one line for each picture, sound and link; the structured content if there is nothing else."""
    if isinstance(result, InputRequiredResult):
        return ToolOutput(output=_NEEDS_PERSON, exit_code=1)
    parts = [_text_of(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [encode_json(result.structured_content).decode()]
    return ToolOutput(output=capped("\n".join(parts)) or "[no output]", exit_code=1 if result.is_error else 0)


def failed(text: str) -> ToolOutput:
    """A call that came to nothing. What a server says of it may be long; the model needs the beginning."""
    shown = text if len(text) <= _MAX_ERROR_CHARS else text[:_MAX_ERROR_CHARS] + "…"
    return ToolOutput(output=capped(shown), exit_code=1)


def capped(text: str) -> str:
    """`text` within the limit of one output, with a line that says how much is left out."""
    text = text.replace("\0", "?")  # some providers refuse it
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_OUTPUT_BYTES:
        return data.decode()
    left_out = len(data) - 2 * _END_BYTES
    # A character that the cut went through is dropped from both ends.
    head = data[:_END_BYTES].decode("utf-8", "replace").rstrip(_BROKEN)
    tail = data[-_END_BYTES:].decode("utf-8", "replace").lstrip(_BROKEN)
    return f"{head}\n[... {left_out} bytes left out; ask the tool for less ...]\n{tail}"


def _text_of(block: ContentBlock) -> str:
    match block:
        case TextContent(text=text):
            return text
        case ImageContent(mime_type=kind, data=data) | AudioContent(mime_type=kind, data=data):
            return f"[{block.type}: {_line(kind)}, {len(data) * 3 // 4} bytes, not shown]"
        case ResourceLink(name=name, uri=uri):
            return f"[resource: {_line(name)}, {_line(uri)}]"
        case EmbeddedResource(resource=TextResourceContents(uri=uri, text=text)):
            return f"[resource: {_line(uri)}]\n{text}"
        case EmbeddedResource(resource=resource):
            return f"[resource: {_line(resource.uri)}, {_line(resource.mime_type or 'binary')}, not shown]"


def _line(text: object) -> str:
    return " ".join(str(text).split())[:300]
