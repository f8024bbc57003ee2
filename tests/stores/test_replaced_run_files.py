"""Snapshot, output and script of a run are replaced: who reads one meanwhile has a whole one (spec-workflow 5.4)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fanfold.protocols import HeldRun
from fanfold.stores.run_files import open_run_files
from fanfold.testing.run_files_conformance import RUN

WRITES: dict[str, Callable[[HeldRun, str], Awaitable[None]]] = {
    ".json": lambda held, text: held.write_snapshot(text.encode()),
    ".output.json": lambda held, text: held.write_output(text.encode()),
    ".script.py": lambda held, text: held.write_script(text),
}


@pytest.mark.parametrize("suffix", WRITES)
def test_who_has_opened_a_file_that_is_replaced_reads_the_old_one_to_its_end(tmp_path: Path, suffix: str) -> None:
    async def main() -> None:
        files = open_run_files(tmp_path)
        held = await files.create(RUN)
        try:
            await WRITES[suffix](held, "old " * 10_000)
            path = Path(files.directory, RUN + suffix)
            with path.open() as reader:  # noqa: ASYNC230  nothing else runs here
                begun = reader.read(4)
                await WRITES[suffix](held, "new " * 20_000)
                assert begun + reader.read() == "old " * 10_000
            assert path.read_text() == "new " * 20_000
        finally:
            await held.release()

    asyncio.run(main())
