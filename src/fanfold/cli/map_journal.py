"""The journal of a map command: which file it is, and a fresh one on request."""

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

from fanfold.contracts.codec import encode_json
from fanfold.orchestration.mapping import MapStep
from fanfold.stores.item_journal import JsonlItemJournal

FOLDER = Path(".a3s") / "maps"


async def open_journal(steps: Sequence[MapStep], *, is_fresh: bool) -> JsonlItemJournal:
    """The journal of this chain of steps in the current directory; other chains have other files.

    With `is_fresh` an existing one is moved to `<name>.before-<n>` and a new one begun.

    Raises:
        SessionBusyError: another process runs this map.
        CorruptLogError: the file is damaged; the message says how to go on.
    """
    meaning = encode_json([step.to_dict() for step in steps])
    path = FOLDER / f"{hashlib.sha256(meaning).hexdigest()[:16]}.jsonl"
    journal = await JsonlItemJournal.open(path)
    if not (is_fresh and journal.finished):
        return journal
    await journal.close()
    names = (path.with_name(f"{path.stem}.before-{number}") for number in itertools.count(1))
    path.rename(next(name for name in names if not name.exists()))
    return await JsonlItemJournal.open(path)
