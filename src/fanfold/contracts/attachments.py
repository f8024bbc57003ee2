"""Attachments as people give them: checked before a prompt is admitted, so that no bad one reaches a log or a model."""

from collections.abc import Mapping, Sequence
from typing import NoReturn, cast

from fanfold.contracts.messages import Attachment
from fanfold.errors import UsageError

MAX_ATTACHMENT_BYTES = 5 * 1024 * 1024
"""Of each; the narrowest limit of the providers' for one picture."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_OTHER_NAMES = {"image/jpg": "image/jpeg"}
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")


def parse_attachments(given: object) -> tuple[Attachment, ...]:
    """The attachments of a prompt: dicts `{"data": bytes, "media_type": str}` or `Attachment`s, in a list or a tuple.

    Raises:
        UsageError: `Invalid session configuration for 'attachments': ...`; it never shows what an attachment holds.
    """
    if not isinstance(given, list | tuple):
        _refuse(f"it must be a list of attachments, not {_kind(given)}")
    return tuple(_parsed(each) for each in cast("Sequence[object]", given))


def _parsed(given: object) -> Attachment:
    if isinstance(given, Attachment):
        return _checked(given.media_type, given.data)
    if not isinstance(given, Mapping):
        _refuse(f'an attachment must be a dict {{"data": bytes, "media_type": str}}, not {_kind(given)}')
    fields = cast("Mapping[object, object]", given)
    if missing := {"data", "media_type"} - fields.keys():
        _refuse(f"an attachment lacks {' and '.join(sorted(missing))}")
    if unknown := fields.keys() - {"data", "media_type"}:
        _refuse(f"an attachment has data and media_type, not {sorted(map(str, unknown))[0][:50]!r}")
    return _checked(fields["media_type"], fields["data"])


def _checked(media_type: object, data: object) -> Attachment:
    if not isinstance(data, bytes | bytearray | memoryview):
        _refuse(f"data of an attachment must be bytes, not {_kind(data)}")
    octets = memoryview(cast("bytes", data))
    if octets.nbytes > MAX_ATTACHMENT_BYTES:
        _refuse(f"attachment exceeds the {MAX_ATTACHMENT_BYTES}-byte limit")
    if octets.nbytes == 0:
        _refuse("attachment is empty")
    if not isinstance(media_type, str):
        _refuse(f"media_type of an attachment must be a text such as 'image/png', not {_kind(media_type)}")
    attachment = Attachment(_known_type(media_type), bytes(octets))
    if attachment.media_type.startswith("text/"):
        _refuse_undecodable(attachment)
    return attachment


def _known_type(media_type: str) -> str:
    """`media_type` in the form that the wires know: in lower case, without parameters."""
    name, _, parameters = media_type.strip().lower().partition(";")
    name = _OTHER_NAMES.get(name.strip(), name.strip())
    is_text = name.startswith("text/") and len(name) > len("text/") and name.isascii() and " " not in name
    if not (name in IMAGE_TYPES or is_text) or not name.isprintable():
        _refuse(f"unknown media type {media_type[:80]!r}; there are {', '.join(IMAGE_TYPES)} and text/...")
    charset = parameters.partition("charset=")[2].partition(";")[0].strip(' "')
    if is_text and charset and charset not in _CHARSETS:
        _refuse(f"a text attachment must be UTF-8, not {charset[:40]!r}; encode it so")
    return name


def _refuse_undecodable(attachment: Attachment) -> None:
    try:
        is_text = "\0" not in attachment.data.decode("utf-8")
    except UnicodeDecodeError:
        is_text = False
    if not is_text:  # outside of the handler, for that error carries the bytes
        _refuse(f"an attachment of {attachment.media_type} is not UTF-8 text")


def _kind(value: object) -> str:
    return type(value).__name__


def _refuse(why: str) -> NoReturn:
    raise UsageError(f"Invalid session configuration for 'attachments': {why}")
