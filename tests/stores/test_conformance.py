"""Both logs keep the laws of the seam."""

from pathlib import Path

from fanfold.protocols import FactLog
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.stores.memory import MemoryFactLog
from fanfold.testing.conformance import DurableFactLogConformance, FactLogConformance


class TestJsonlFactLog(DurableFactLogConformance):
    def open_log(self, directory: Path) -> FactLog:
        return JsonlFactLog(directory)


class TestMemoryFactLog(FactLogConformance):
    def open_log(self, directory: Path) -> FactLog:
        return MemoryFactLog()
