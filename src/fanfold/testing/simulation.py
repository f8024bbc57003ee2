"""The simulator: a workflow drawn from a seed, run, made to fail in every way, and started again until it is done.

What really happened is known from the steps themselves and from the bytes in the store, so a law is judged without
asking the code under test. `python -m fanfold.testing.simulations` runs many.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random

import msgspec

from fanfold.errors import AlreadyActiveError
from fanfold.foreign import logger
from fanfold.orchestration.journal import read_journal
from fanfold.orchestration.plan import plan_resume
from fanfold.stores.memory_store import MemorySessionStore
from fanfold.testing.faulty_store import Crash, StoreFaults
from fanfold.testing.simulated_call import RESUMES, CallPlan, Kind, Resume, SimulatedCall
from fanfold.testing.simulated_work import HOST_WAYS, MODEL_WAYS
from fanfold.testing.simulated_world import WORKFLOW, SimulatedStep, SimulatedWorld
from fanfold.testing.virtual_loop import DeadlockError, VirtualLoop, virtual_env

MOST_CALLS = 5
"""In which things go wrong; after them comes one in which nothing does."""
CRASHES: tuple[Crash, ...] = ("before", "torn", "after")


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed came to."""

    seed: int
    kind: Kind
    steps: int
    calls: int
    crashes: int
    seconds: float
    """Of virtual time."""
    story: str


class LawBrokenError(AssertionError):
    """A simulated schedule broke a law; its text is the story, and how to have it again."""


def simulate(
    seed: int,
    *,
    kind: Kind | None = None,
    faults: StoreFaults | None = None,
    store: Callable[[], MemorySessionStore] = MemorySessionStore,
    resume: Resume | None = None,
) -> Simulated:
    """One schedule, drawn from `seed`; its kind too, unless one is given.

    With `faults` these alone go wrong, in the first call, and the next has to end it. `store` and `resume` replace
    what is under test, to see that the laws can be broken.

    Raises:
        LawBrokenError: with the story and a one-line reproduction.
    """
    simulation = _Simulation(seed, kind, store(), resume)
    loop, world = simulation.loop, simulation.world
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what goes wrong here is meant to, and the story tells it
    try:
        loop.run_until_complete(simulation.run() if faults is None else simulation.run_once(faults))
    except DeadlockError as error:
        world.broken(str(error))
    finally:
        loop.wind_down()
        logger.setLevel(level)
    for each in loop.unhandled:
        if "handle" in each:
            world.broken(f"a callback raised {each['exception']!r}")
    if world.fault is not None:
        raise LawBrokenError(
            f"seed {seed} ({simulation.kind}) broke a law: {world.fault}\n\n{world.story()}\n\n"
            f"Once more: python -m fanfold.testing.simulations --seed {seed}" + (f" --kind {kind}" if kind else "")
        )
    return Simulated(
        seed=seed,
        kind=simulation.kind,
        steps=len(world.steps),
        calls=simulation.calls,
        crashes=simulation.crashes,
        seconds=loop.time(),
        story=world.story(),
    )


class _Simulation:
    def __init__(self, seed: int, kind: Kind | None, store: MemorySessionStore, resume: Resume | None) -> None:
        random = Random(seed)
        self.kind: Kind = random.choices(("host", "local", "phases"), (5, 4, 1))[0]
        if kind is not None:
            self.kind = kind
        self.loop = VirtualLoop(seed)
        self.world = SimulatedWorld(random, self.loop, store, self._steps(random))
        self.calls = 0
        self.crashes = 0
        self._resume = resume or RESUMES[self.kind]
        self._env = virtual_env(seed)
        self._random = random

    def _steps(self, random: Random) -> list[SimulatedStep]:
        ways = MODEL_WAYS if self.kind == "local" else HOST_WAYS
        count = 1 + min(int(random.expovariate(0.3)), 14)
        trouble = random.choice((0.0, 0.15, 0.5))
        return [
            SimulatedStep(
                task_id=f"s{number}",
                ways=[random.choice(ways) if random.random() < trouble else "ok" for _ in range(random.randrange(6))],
                rounds=random.randrange(4) if self.kind == "local" else 0,
                retries=random.choice((None, None, 1, 2)),
                timeout_ms=random.choice((None, None, 80, 5000)),
            )
            for number in range(count)
        ]

    # ---- the whole ----

    async def run(self) -> None:
        world = self.world
        for _ in range(self._random.randrange(1, MOST_CALLS + 1)):
            await self._round()
            if world.fault is not None or (world.removals and self._random.random() < 0.8):
                break
        if world.fault is None and world.witness.is_empty and not world.removals:
            world.tell("world", "nothing is recorded so far")
        if world.fault is None:
            await self._last_call()

    async def run_once(self, faults: StoreFaults) -> None:
        for step in self.world.steps.values():
            step.ways, step.timeout_ms = [], None
        call = self._call(CallPlan(faults=faults, slots=3))
        await call.run()
        self.crashes += call.store.is_dead
        await self._settle()
        if self.world.fault is None:
            await self._last_call()

    async def _last_call(self) -> None:
        world = self.world
        world.tell("world", "from now on nothing goes wrong")
        for step in world.steps.values():
            step.ways, step.timeout_ms = [], None
        for _ in range(2):  # one may end with a failure that was recorded before, all but its end
            if await self._call(CallPlan(faults=StoreFaults(), slots=4)).run():
                return
        world.broken("two calls in which nothing goes wrong did not succeed")

    async def _round(self) -> None:
        self._change_specs()
        await self._plan()
        faults, count = self._faults(), 1 + (self._random.random() < 0.15)
        calls = [self._call(self._call_plan(faults)) for _ in range(count)]
        tasks = [asyncio.ensure_future(call.run()) for call in calls]
        trouble = asyncio.ensure_future(self._trouble(calls[0], tasks))
        await asyncio.wait([*tasks, trouble])
        for task in [*tasks, trouble]:
            if not task.cancelled():
                task.result()
        self.crashes += sum(call.store.is_dead for call in calls)
        await self._settle()

    def _call(self, plan: CallPlan) -> SimulatedCall:
        self.calls += 1
        return SimulatedCall(f"call {self.calls}", self.world, self.kind, plan, self._resume, self._env)

    # ---- what goes wrong ----

    def _faults(self) -> StoreFaults:
        random, steps = self._random, len(self.world.steps)
        rare = random.choice((0.0, 0.0, 0.05, 0.3))
        changes = 1 + steps // 2 if self.kind != "local" else 1 + 2 * steps
        return StoreFaults(
            crash_at=random.randint(1, changes) if random.random() < 0.7 else None,
            crash=random.choice(CRASHES),
            full=rare if random.random() < 0.5 else 0.0,
            unanswered=rare if random.random() < 0.3 else 0.0,
            doubled=random.choice((0.0, 0.3)),
            seconds=random.choice(((0.0, 0.0), (0.001, 0.02), (0.01, 0.3))),
        )

    def _call_plan(self, faults: StoreFaults) -> CallPlan:
        random = self._random
        budget = random.randrange(10, 60 * len(self.world.steps) + 11) if random.random() < 0.25 else None
        return CallPlan(faults=faults, slots=random.choice((0, 1, 2, 3, 5)), budget=budget,
                        is_strict=random.random() < 0.1)  # fmt: skip

    def _change_specs(self) -> None:
        if self.world.witness.is_empty or self._random.random() > 0.15:
            return
        for step in self.world.steps.values():
            if self._random.random() < 0.3:
                step.version = max(0, step.version + self._random.choice((-1, 1)))
                self.world.tell("world", f"{step.task_id} is now '{step.prompt}'")

    async def _trouble(self, call: SimulatedCall, tasks: list[asyncio.Task[bool]]) -> None:
        """One thing at most, at some moment of the call."""
        what = self._random.choices(("none", "cancel", "cancel step", "kill", "give up", "fence"), (10, 1, 2, 2, 1, 1))[
            0
        ]
        if what == "none":
            return
        await asyncio.sleep(self._random.expovariate(4))
        if call.is_over or not call.is_live:
            return
        match what:
            case "cancel":
                call.cancel()
            case "cancel step":
                call.cancel_step(self._random.choice(list(self.world.steps)))
            case "kill":
                await call.kill(tasks[0])
            case "give up":
                call.give_up(tasks[0])
            case _:
                if len(tasks) == 1 and call.store.leases:
                    call.fence()
                    await self._call(self._call_plan(StoreFaults())).run()

    # ---- between calls ----

    async def _settle(self) -> None:
        """Whoever ended has let the workflow go, at once or as soon as its last writing is done."""
        world = self.world
        for _ in range(100):
            try:
                lease = await world.store.acquire(f"workflow/{WORKFLOW}")
            except AlreadyActiveError:
                await asyncio.sleep(0.1)
                continue
            await world.store.release(lease)
            await world.witness.look(again=True)
            spent = (await read_journal(world.store, WORKFLOW)).spent.total_tokens
            told = world.witness.tokens
            world.require(spent == told, f"the journal says that {spent} tokens were spent, its records {told}")
            return
        world.broken("nobody runs the workflow any more, and its lease is still held")

    async def _plan(self) -> None:
        """The plan of a call tells the truth."""
        if self._random.random() > 0.3:
            return
        world = self.world
        plan = await plan_resume(world.store, [step.spec() for step in world.steps.values()], WORKFLOW)
        for planned in plan.steps:
            step = world.steps[planned.task_id]
            is_recorded = world.witness.has(step.task_id, step.prompt)
            if self.kind != "phases":  # their places are not those of the plan
                world.require(
                    (planned.action == "cached") == is_recorded,
                    f"{step.task_id} is planned as {planned.action}, recorded: {is_recorded}",
                )
