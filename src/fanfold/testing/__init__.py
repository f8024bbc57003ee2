"""Fakes that are real implementations of a seam, and suites that any implementation can be run against."""

from fanfold.testing.faulty_store import FaultyStore as FaultyStore
from fanfold.testing.faulty_store import SimulatedCrashError as SimulatedCrashError
from fanfold.testing.faulty_store import StoreFaults as StoreFaults
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
