"""Ids of the tool calls of one response: unique, and such that every provider takes them back."""

import re
from collections.abc import Sequence

LONGEST_ID = 64
HOST_PREFIX = "host-"
"""The id of a call that the host makes itself begins so, and no other's."""
_ID = rf"(?!{HOST_PREFIX})[A-Za-z0-9_-]{{1,64}}"


def unique_ids(given: Sequence[str]) -> list[str]:
    """Ids that match `^[A-Za-z0-9_-]{1,64}$`, and are none of the host's.

    An odd or empty one becomes `call-<position>`, a repeated one gets `-2`, `-3`, ...
    """
    taken: set[str] = set()
    ids: list[str] = []
    wanted = [id if re.fullmatch(_ID, id) else f"call-{position}" for position, id in enumerate(given)]
    for id in wanted:
        unique, number = id, 1
        # A suffix must not take the id that a later call brings itself.
        while unique in taken or (number > 1 and unique in wanted):
            number += 1
            suffix = f"-{number}"
            unique = id[: LONGEST_ID - len(suffix)] + suffix
        taken.add(unique)
        ids.append(unique)
    return ids
