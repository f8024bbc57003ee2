"""pytest fixtures: scripted models, sessions that are looked after, cassettes, and a clock that does not run by itself.

pytest loads this for everybody who has fanfold installed: what costs time is imported by the fixtures that need it.
"""

import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from fanfold.env import HostEnv
    from fanfold.protocols import ModelCapabilities, ModelClient
    from fanfold.testing.cassette import Cassette, CassetteMode
    from fanfold.testing.clock import ManualClock
    from fanfold.testing.scripted import Script, ScriptedModel
    from fanfold.testing.session_factory import SessionFactory

TIME_MS = 1_700_000_000_000
_cassettes: "pytest.StashKey[list[Cassette]]" = pytest.StashKey()
_MODES = ("replay", "record", "auto", "live")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fanfold")
    group.addoption(
        "--fanfold-cassettes",
        choices=_MODES,
        default="replay",
        help="what the fixture `cassette` does: replay (the default), record anew, auto (record what is missing), live",
    )
    group.addoption(
        "--fanfold-record",
        dest="fanfold_cassettes",
        action="store_const",
        const="record",
        help="the same as --fanfold-cassettes=record",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A miss fails the test even when the code under test made something else of it."""
    yield
    for cassette in item.stash.get(_cassettes, None) or ():
        if cassette.misses:
            pytest.fail(str(cassette.misses[0]), pytrace=False)


@pytest.fixture
def scripted_model() -> "Callable[..., ScriptedModel]":
    """`scripted_model(["first answer", "second answer"])`: a `fanfold.testing.ScriptedModel`."""
    from fanfold.testing.scripted import ScriptedModel

    def make(script: "Script", *, capabilities: "ModelCapabilities | None" = None) -> "ScriptedModel":
        return ScriptedModel(script, capabilities=capabilities)

    return make


@pytest.fixture
def manual_clock() -> "ManualClock":
    """A clock for `HostEnv(clock=...)` that moves only by `advance` and `sleep`."""
    from fanfold.testing.clock import ManualClock

    return ManualClock(TIME_MS)


@pytest.fixture
def sequential_env() -> "HostEnv":
    """Ids `id-0`, `id-1`, ..., a time that stands still, and seeded randomness: the same in each run of the test."""
    from random import Random

    from fanfold.env import FixedClock, HostEnv, SequentialIds

    return HostEnv(clock=FixedClock(TIME_MS), ids=SequentialIds("id"), random=Random(0))


@pytest.fixture
def agent_session(tmp_path: Path, sequential_env: "HostEnv") -> "Iterator[SessionFactory]":
    """`agent_session(script)`: an open session on `tmp_path`, closed at the end of the test.

    A task or thread that it leaves behind fails the test. `script` may also be a ModelClient, such as `cassette`.
    """
    from fanfold.testing.session_factory import SessionFactory

    factory = SessionFactory(tmp_path, sequential_env)
    yield factory
    factory.close()


@pytest.fixture
def cassette_model() -> "ModelClient | None":
    """The model that `cassette` records; define it in your conftest: `return LiveModel("openai/gpt-5-mini")`."""
    return None


@pytest.fixture
def cassette_scrub() -> Callable[[str], str] | None:
    """What takes secrets and changing parts out of the texts of `cassette`; define it in your conftest."""
    return None


@pytest.fixture
def cassette(
    request: pytest.FixtureRequest,
    cassette_model: "ModelClient | None",
    cassette_scrub: Callable[[str], str] | None,
) -> "Iterator[Cassette]":
    """A model that answers from `cassettes/<test file>/<test>.json` beside the test file.

    `pytest --fanfold-record` records it, with the model that the fixture `cassette_model` gives. A request that is not
    recorded fails the test.
    """
    from fanfold.testing.cassette import Cassette

    mode = cast("CassetteMode", request.config.getoption("fanfold_cassettes"))
    if cassette_model is None and mode in ("record", "live"):
        pytest.fail(
            f"--fanfold-cassettes={mode} needs a model: define a fixture `cassette_model` that returns one, such as "
            'fanfold.testing.LiveModel("openai/gpt-5-mini")',
            pytrace=False,
        )
    hint = f"pytest --fanfold-record {request.node.nodeid!r}"
    made = Cassette(_place(request), mode, inner=cassette_model, scrub=cassette_scrub, record_hint=hint)
    request.node.stash.setdefault(_cassettes, []).append(made)
    yield made
    made.save()


def _place(request: pytest.FixtureRequest) -> Path:
    test = request.node.nodeid.partition("::")[2] or request.node.name
    return request.path.parent / "cassettes" / request.path.stem / f"{_file_name(test.replace('::', '.'))}.json"


def _file_name(test: str) -> str:
    """The test's name where every system takes it for a file; otherwise what is left of it, and a digest."""
    name = re.sub(r"[^\w.-]+", "_", test, flags=re.ASCII).strip("_")[:100]
    return name if name == test else f"{name}-{sha256(test.encode()).hexdigest()[:8]}"
