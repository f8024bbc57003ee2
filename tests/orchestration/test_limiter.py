"""Places are never lost and never given twice, whoever is cancelled while it waits for one."""

import asyncio
import random

from fanfold.orchestration.limiter import Limiter


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
