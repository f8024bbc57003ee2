"""Notices: what a conversation is to be told of work that went on beside it."""

import msgspec


class Notice(msgspec.Struct, frozen=True):
    id: str
    """Of that one end of that one piece of work, for ever: the log has it once, as the fact `notice-<id>`."""
    text: str
    """As the model reads it, see `kernel.notification.render_notification`."""
