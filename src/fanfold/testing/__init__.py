"""Fakes that are real implementations of a seam, cassettes, crash points, and suites for implementations of your own.

A name is imported when it is first used, for pytest loads the plugin in this package for everybody.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fanfold.testing.cassette import Cassette as Cassette
    from fanfold.testing.cassette import CassetteMissError as CassetteMissError
    from fanfold.testing.clock import ManualClock as ManualClock
    from fanfold.testing.crash_point import CrashPoint as CrashPoint
    from fanfold.testing.crash_point import every_crash_point as every_crash_point
    from fanfold.testing.event_assertions import assert_events as assert_events
    from fanfold.testing.faulty_store import FaultyStore as FaultyStore
    from fanfold.testing.faulty_store import SimulatedCrashError as SimulatedCrashError
    from fanfold.testing.faulty_store import StoreFaults as StoreFaults
    from fanfold.testing.live_model import LiveModel as LiveModel
    from fanfold.testing.replayed_run import ReplayMissError as ReplayMissError
    from fanfold.testing.replayed_run import replay_run as replay_run
    from fanfold.testing.scripted import Reply as Reply
    from fanfold.testing.scripted import ScriptedModel as ScriptedModel
    from fanfold.testing.scripted import as_json as as_json
    from fanfold.testing.scripted import calls as calls
    from fanfold.testing.scripted import echo as echo
    from fanfold.testing.simulation import LawBrokenError as LawBrokenError
    from fanfold.testing.simulation import simulate as simulate
    from fanfold.testing.virtual_loop import DeadlockError as DeadlockError
    from fanfold.testing.virtual_loop import VirtualLoop as VirtualLoop
    from fanfold.testing.virtual_loop import run_virtually as run_virtually
    from fanfold.testing.virtual_loop import virtual_env as virtual_env

_HOMES = {
    "fanfold.testing.cassette": ("Cassette", "CassetteMissError"),
    "fanfold.testing.clock": ("ManualClock",),
    "fanfold.testing.crash_point": ("CrashPoint", "every_crash_point"),
    "fanfold.testing.event_assertions": ("assert_events",),
    "fanfold.testing.faulty_store": ("FaultyStore", "SimulatedCrashError", "StoreFaults"),
    "fanfold.testing.live_model": ("LiveModel",),
    "fanfold.testing.replayed_run": ("ReplayMissError", "replay_run"),
    "fanfold.testing.scripted": ("Reply", "ScriptedModel", "as_json", "calls", "echo"),
    "fanfold.testing.simulation": ("LawBrokenError", "simulate"),
    "fanfold.testing.virtual_loop": ("DeadlockError", "VirtualLoop", "run_virtually", "virtual_env"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = list(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'fanfold.testing' has no attribute '{name}'")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
