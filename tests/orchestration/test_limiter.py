"""Places are never lost and never given twice, whoever is cancelled while it waits for one."""

import asyncio
import random

from fanfold.orchestration.limiter import Limiter, Slot
from fanfold.testing.virtual_loop import run_virtually


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_whoever_asks_first_is_given_a_place_first() -> None:
    async def main() -> None:
        limiter, order = Limiter(1), list[int]()

        async def step(number: int) -> None:
            async with limiter.slot():
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*map(step, range(5)))
        assert order == [0, 1, 2, 3, 4]
        assert not limiter.is_full

    asyncio.run(main())


def test_a_place_that_was_handed_to_one_who_is_cancelled_goes_to_the_next() -> None:
    async def main() -> None:
        limiter = Limiter(1)
        await limiter.take()
        first, second = (asyncio.create_task(limiter.take()) for _ in range(2))
        await turns()
        limiter.give_back()
        first.cancel()  # it has its place, and has not run since
        await second
        assert first.cancelled()
        assert limiter.is_full
        limiter.give_back()
        assert not limiter.is_full

    asyncio.run(main())


def test_one_who_was_cancelled_while_it_waited_is_passed_over() -> None:
    async def main() -> None:
        limiter = Limiter(1)
        await limiter.take()
        first, second = (asyncio.create_task(limiter.take()) for _ in range(2))
        await turns()
        first.cancel()
        await turns()
        limiter.give_back()
        await second
        assert limiter.is_full

    asyncio.run(main())


def test_nobody_overtakes_one_who_was_handed_a_place() -> None:
    async def main() -> None:
        limiter = Limiter(1)
        await limiter.take()
        waiting = asyncio.create_task(limiter.take())
        await turns()
        limiter.give_back()
        assert limiter.is_full, "it belongs to the one who waits, though that has not run since"
        await waiting

    asyncio.run(main())


def test_however_steps_end_as_many_places_are_free_at_the_end_as_in_the_beginning() -> None:
    async def main(seed: int) -> None:
        chance, limiter, held = random.Random(seed), Limiter(3), 0

        async def step() -> None:
            nonlocal held
            async with limiter.slot() as slot:
                held += 1
                assert held <= 3
                try:
                    await turns(chance.randrange(4))
                    if chance.random() < 0.3:
                        held -= 1
                        try:
                            async with slot.given_back():
                                await turns(chance.randrange(3))
                        finally:
                            held += 1
                finally:
                    held -= 1

        tasks = [asyncio.create_task(step()) for _ in range(60)]
        while not all(task.done() for task in tasks):
            if chance.random() < 0.4:
                chance.choice(tasks).cancel()
            await asyncio.sleep(0)
        errors = {type(error) for error in await asyncio.gather(*tasks, return_exceptions=True)}
        assert errors <= {type(None), asyncio.CancelledError}
        for _ in range(3):
            assert not limiter.is_full
            await limiter.take()
        assert limiter.is_full

    for seed in range(40):
        asyncio.run(main(seed))


def test_a_place_that_is_given_away_once_more_while_it_is_waited_for_is_taken_by_the_last_one_only() -> None:
    async def main() -> None:
        limiter = Limiter(1)

        async def waits(slot: Slot, begins: float, seconds: float) -> None:
            await asyncio.sleep(begins)
            async with slot.given_back():
                await asyncio.sleep(seconds)

        async def other(begins: float, seconds: float) -> None:
            await asyncio.sleep(begins)
            async with limiter.slot():
                await asyncio.sleep(seconds)

        async def step() -> None:
            async with limiter.slot() as slot:  # the first one waits for it from 2 to 5, the second one from 3 to 9
                await asyncio.gather(waits(slot, 0, 2), waits(slot, 3, 6))
                assert limiter.is_full

        await asyncio.gather(step(), other(1, 4), other(6, 1))
        await limiter.take()
        assert limiter.is_full

    run_virtually(main())


def test_a_place_for_which_two_have_waited_is_taken_once() -> None:
    async def main() -> None:
        limiter = Limiter(2)

        async def waits(slot: Slot, begins: float, seconds: float) -> None:
            await asyncio.sleep(begins)
            async with slot.given_back():
                await asyncio.sleep(seconds)

        async with limiter.slot() as slot:
            first = asyncio.create_task(waits(slot, 0, 1))
            await asyncio.sleep(0.5)
            await asyncio.gather(limiter.take(), limiter.take())
            second = asyncio.create_task(waits(slot, 1, 1))
            await asyncio.sleep(3)
            limiter.give_back()
            limiter.give_back()
            await asyncio.gather(first, second)
            assert not limiter.is_full
        await asyncio.gather(limiter.take(), limiter.take())
        assert limiter.is_full

    run_virtually(main())


def test_a_step_that_has_ended_takes_no_place_back_from_one_inside_of_it_that_has_not() -> None:
    async def main() -> None:
        limiter = Limiter(1)

        async def inner() -> None:
            async with limiter.slot():
                await asyncio.sleep(1)

        async with limiter.slot():
            task = asyncio.create_task(inner())
            await asyncio.sleep(0.5)
        await task
        assert not limiter.is_full

    run_virtually(main())


def test_work_that_goes_on_behind_the_end_of_its_step_has_places_of_its_own() -> None:
    async def main() -> None:
        limiter, was_full = Limiter(1), list[bool]()

        async def inner() -> None:
            await asyncio.sleep(1)
            async with limiter.slot():
                was_full.append(limiter.is_full)

        async with limiter.slot():
            later = asyncio.create_task(inner())
        await later
        assert was_full == [True]
        assert not limiter.is_full

    run_virtually(main())
