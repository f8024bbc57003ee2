"""SimulatedWorld: what one simulated workflow is made of, and what has really happened to it, in order."""

from random import Random

import msgspec

from fanfold.contracts.steps import AgentStepSpec
from fanfold.stores.memory_store import MemorySessionStore
from fanfold.testing.journal_witness import JournalWitness
from fanfold.testing.virtual_loop import VirtualLoop

WORKFLOW = "wf"


class SimulatedStep(msgspec.Struct):
    """A step of the workflow, and what it does when it is run."""

    task_id: str
    ways: list[str]
    """How its first runs, or its first model turns, end; later ones are `ok`."""
    rounds: int = 0
    """Of tools, before the answer."""
    retries: int | None = None
    timeout_ms: int | None = None
    version: int = 0
    """Changes its prompt, and so its meaning."""
    runs: int = 0

    @property
    def prompt(self) -> str:
        return f"{self.task_id} v{self.version}"

    def spec(self) -> AgentStepSpec:
        return AgentStepSpec(
            task_id=self.task_id,
            agent="worker",
            prompt=self.prompt,
            retries=self.retries,
            timeout_ms=self.timeout_ms,
        )

    def next_way(self) -> str:
        self.runs += 1
        return self.ways[self.runs - 1] if self.runs <= len(self.ways) else "ok"


class SimulatedWorld:
    def __init__(
        self, random: Random, loop: VirtualLoop, store: MemorySessionStore, steps: list[SimulatedStep]
    ) -> None:
        self.random = random
        self.store = store
        self.steps = {step.task_id: step for step in steps}
        self.witness = JournalWitness(store, f"workflow/{WORKFLOW}", self.broken, self._removed)
        self.fault: str | None = None
        """The first law that was broken."""
        self.serial = 0
        """Number of the newest run, turn or tool call anywhere."""
        self.removals = 0
        self._loop = loop
        self._story: list[tuple[float, str, str]] = []

    def tell(self, who: str, what: str) -> None:
        if self.fault is None:
            self._story.append((self._loop.time(), who, what))

    def broken(self, law: str) -> None:
        if self.fault is None:
            self.tell("BROKEN", law)
            self.fault = law

    def require(self, holds: bool, law: str) -> None:
        if not holds:
            self.broken(law)

    def story(self) -> str:
        return "\n".join(f"{time:10.3f}  {who:<8} {what}" for time, who, what in self._story)

    def number(self) -> int:
        self.serial += 1
        return self.serial

    def latency(self) -> float:
        return self.random.expovariate(1 / 0.05)

    def _removed(self) -> None:
        """The log is gone: rightly so when it held a success of each step that is asked for."""
        self.removals += 1
        missing = [step.task_id for step in self.steps.values() if not self.witness.has(step.task_id, step.prompt)]
        self.require(not missing, f"the journal was removed without a success of {', '.join(missing)}")
