"""Attachments of a prompt in the terms of the wires: pictures as base64, text under a line that names its type."""

import base64

from fanfold.contracts.messages import Attachment


def is_image(attachment: Attachment) -> bool:
    return attachment.media_type.startswith("image/")


def base64_of(attachment: Attachment) -> str:
    return base64.b64encode(attachment.data).decode("ascii")


def attached_text(attachment: Attachment) -> str:
    return f"[attachment {attachment.media_type}]\n{attachment.data.decode('utf-8', 'replace')}"
