"""`python -m fanfold.testing.simulations`: many simulated schedules, or the story of one."""

import time

import click

from fanfold.testing.simulated_call import RESUMES, Kind
from fanfold.testing.simulation import LawBrokenError, simulate

MOST_STORIES = 3


@click.command()
@click.option("--seeds", default="0-999", show_default=True, help="Range of seeds, both ends included.")
@click.option("--seed", type=int, help="One seed only, with its story.")
@click.option("--kind", type=click.Choice(list(RESUMES)), help="What runs the steps; drawn from the seed otherwise.")
def main(seeds: str, seed: int | None, kind: Kind | None) -> None:
    """Run simulated schedules; exit code 1 when one of them breaks a law."""
    if seed is not None:
        _tell(seed, kind)
        return
    first, last = _range(seeds)
    began = time.perf_counter()
    crashes = calls = steps = 0
    broken: list[tuple[int, str]] = []
    for number in range(first, last + 1):
        try:
            result = simulate(number, kind=kind)
        except LawBrokenError as error:
            broken.append((number, str(error)))
            continue
        crashes += result.crashes
        calls += result.calls
        steps += result.steps
    for _, story in broken[:MOST_STORIES]:
        click.echo(story + "\n")
    count = last - first + 1
    click.echo(
        f"{count} schedules of {steps} steps, {crashes} crashes, {calls - count} restarts, "
        f"{time.perf_counter() - began:.1f} s; {len(broken)} broke a law"
        + (f": seeds {', '.join(str(number) for number, _ in broken)}" if broken else "")
    )
    if broken:
        raise SystemExit(1)


def _tell(seed: int, kind: Kind | None) -> None:
    try:
        result = simulate(seed, kind=kind)
    except LawBrokenError as error:
        click.echo(str(error))
        raise SystemExit(1) from None
    click.echo(
        f"{result.story}\n\nseed {seed} ({result.kind}): {result.calls} calls, {result.crashes} crashes, no law broken"
    )


def _range(seeds: str) -> tuple[int, int]:
    first, dash, last = seeds.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise click.BadParameter(f"expected a range such as 0-999, got {seeds!r}", param_hint="--seeds")
    return int(first), int(last or first)


if __name__ == "__main__":
    main()
