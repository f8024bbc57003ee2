"""Where the files of one workflow run lie (decisions 4.3).

    <workspace>/.a3s/workflow-runs/<runId>.json            snapshot
                                   <runId>.output.json
                                   <runId>.journal.jsonl
                                   <runId>.script.py       of an inline script
                                   <runId>.events.jsonl    and `.events.1.jsonl`, what came before; see `run_events`
                                   <runId>.request         what another process asks of whoever runs it
                                   <runid>.lock            locked by whoever runs it
                                   blobs/<sha256>          of all runs
                                   outbox/                 see `run_notices`

To some disks two ids that differ by case only are one, so they are to all of us: the name of the lock is the id in
lower case, the lock says which of the two was created, and there is no run of the other.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from fanfold.errors import LifecycleError, LogWriteError, UsageError, WorkflowInputError
from fanfold.kernel.workflow_meta import is_run_id
from fanfold.stores.directory import refuse_links
from fanfold.stores.durable_file import read_file

FOLDER = (".a3s", "workflow-runs")
SNAPSHOT = ".json"
JOURNAL = ".journal.jsonl"


@dataclass(frozen=True, slots=True)
class RunPlace:
    directory: Path
    run_id: str

    @property
    def snapshot(self) -> Path:
        return self._file(SNAPSHOT)

    @property
    def output(self) -> Path:
        return self._file(".output.json")

    @property
    def journal(self) -> Path:
        return self._file(JOURNAL)

    @property
    def script(self) -> Path:
        return self._file(".script.py")

    @property
    def events(self) -> Path:
        return self._file(".events.jsonl")

    @property
    def old_events(self) -> Path:
        return self._file(".events.1.jsonl")

    @property
    def request(self) -> Path:
        return self._file(".request")

    @property
    def lock(self) -> Path:
        return self.directory / lock_name(self.run_id)

    @property
    def blobs(self) -> Path:
        return self.directory / "blobs"

    def is_run(self) -> bool:
        """There is such a run. One that has only a lock was cut off before anybody was told of it."""
        return (os.path.lexists(self.snapshot) or os.path.lexists(self.journal)) and not self._is_other_case()

    def is_taken(self) -> bool:
        """Some file has this name, or on some disks one that differs by case."""
        ours = (self.snapshot, self.journal, self.output, self.script, self.events, self.old_events)
        return any(os.path.lexists(path) for path in ours)

    def _is_other_case(self) -> bool:
        """The run that has these names is called otherwise."""
        try:
            known_as = (read_file(self.lock) or b"").decode(errors="replace").rstrip("\n")
        except LogWriteError:
            return False  # whoever wants the lock itself is told why not
        return known_as != self.run_id and known_as.lower() == self.run_id.lower()

    def _file(self, suffix: str) -> Path:
        return self.directory / (self.run_id + suffix)


def lock_name(run_id: str) -> str:
    return run_id.lower() + ".lock"


def require_run_id(run_id: str) -> None:
    """Raises WorkflowInputError `bad_run_id`; whatever passes is a file name, and no path."""
    if not is_run_id(run_id):
        message = f"{run_id!r:.100} is no run id: it must be wf_<name of the workflow>_<16 digits of 0-9a-f>"
        raise WorkflowInputError("bad_run_id", message)


def require_no_links(directory: Path, *below: str) -> None:
    """Raises WorkflowInputError `store_unwritable` when files of ours would be written wherever a link leads."""
    try:
        refuse_links(directory, *below)
    except UsageError as error:
        raise WorkflowInputError("store_unwritable", str(error)) from error


def run_not_found(run_id: str) -> WorkflowInputError:
    return WorkflowInputError("run_not_found", f"there is no workflow run '{run_id}' in this workspace")


def used_after_release(run_id: str) -> LifecycleError:
    return LifecycleError(f"workflow run '{run_id}' was released; hold it again to go on")


def bad_script(run_id: str) -> UsageError:
    return UsageError(f"the script of '{run_id}' was not written: it has surrogates, which are no characters")
