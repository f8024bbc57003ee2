"""Fan out agents, fold the log: sessions that are logs, and orchestration as code over them.

A name is imported when it is first used: `fanfold --version`, and a program that only needs the records, do not pay
for the rest.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fanfold.release import VERSION

if TYPE_CHECKING:
    from fanfold.agent import Agent as Agent
    from fanfold.contracts.agents import AgentDefinition as AgentDefinition
    from fanfold.contracts.agents import WorkerAgentSpec as WorkerAgentSpec
    from fanfold.contracts.events import AgentEvent as AgentEvent
    from fanfold.contracts.events import AgentResult as AgentResult
    from fanfold.contracts.messages import ToolOutput as ToolOutput
    from fanfold.contracts.messages import ToolSpec as ToolSpec
    from fanfold.contracts.messages import Usage as Usage
    from fanfold.contracts.policy import ConfirmationPolicy as ConfirmationPolicy
    from fanfold.contracts.policy import PermissionPolicy as PermissionPolicy
    from fanfold.contracts.steps import AgentStepSpec as AgentStepSpec
    from fanfold.contracts.steps import BudgetSnapshot as BudgetSnapshot
    from fanfold.contracts.steps import ParallelResult as ParallelResult
    from fanfold.contracts.steps import StepOutcome as StepOutcome
    from fanfold.contracts.workflow import ResumePlan as ResumePlan
    from fanfold.contracts.workflow import WorkflowCheckpoint as WorkflowCheckpoint
    from fanfold.env import FixedClock as FixedClock
    from fanfold.env import HostEnv as HostEnv
    from fanfold.env import SequentialIds as SequentialIds
    from fanfold.errors import FanfoldError as FanfoldError
    from fanfold.options import SessionOptions as SessionOptions
    from fanfold.orchestration.control import FanOutControl as FanOutControl
    from fanfold.orchestration.ledger import TokenLedger as TokenLedger
    from fanfold.orchestration.mapping import MapItem as MapItem
    from fanfold.orchestration.mapping import MapResult as MapResult
    from fanfold.orchestration.mapping import MapStep as MapStep
    from fanfold.orchestration.parallel import execute_steps_parallel as execute_steps_parallel
    from fanfold.orchestration.pipeline import execute_pipeline as execute_pipeline
    from fanfold.orchestration.resumable import execute_steps_parallel_resumable as execute_steps_parallel_resumable
    from fanfold.orchestration.workflow import Workflow as Workflow
    from fanfold.protocols import AgentExecutor as AgentExecutor
    from fanfold.protocols import ModelClient as ModelClient
    from fanfold.protocols import SessionStore as SessionStore
    from fanfold.protocols import Tool as Tool
    from fanfold.protocols import ToolScope as ToolScope
    from fanfold.session.session import Session as Session
    from fanfold.stores.file_store import FileSessionStore as FileSessionStore
    from fanfold.stores.memory_store import MemorySessionStore as MemorySessionStore
    from fanfold.stores.sqlite_store import SqliteSessionStore as SqliteSessionStore

__version__ = VERSION

_HOMES = {
    "fanfold.agent": ("Agent",),
    "fanfold.contracts.agents": ("AgentDefinition", "WorkerAgentSpec"),
    "fanfold.contracts.events": ("AgentEvent", "AgentResult"),
    "fanfold.contracts.messages": ("ToolOutput", "ToolSpec", "Usage"),
    "fanfold.contracts.policy": ("ConfirmationPolicy", "PermissionPolicy"),
    "fanfold.contracts.steps": ("AgentStepSpec", "BudgetSnapshot", "ParallelResult", "StepOutcome"),
    "fanfold.contracts.workflow": ("ResumePlan", "WorkflowCheckpoint"),
    "fanfold.env": ("FixedClock", "HostEnv", "SequentialIds"),
    "fanfold.errors": ("FanfoldError",),
    "fanfold.options": ("SessionOptions",),
    "fanfold.orchestration.control": ("FanOutControl",),
    "fanfold.orchestration.ledger": ("TokenLedger",),
    "fanfold.orchestration.mapping": ("MapItem", "MapResult", "MapStep"),
    "fanfold.orchestration.parallel": ("execute_steps_parallel",),
    "fanfold.orchestration.pipeline": ("execute_pipeline",),
    "fanfold.orchestration.resumable": ("execute_steps_parallel_resumable",),
    "fanfold.orchestration.workflow": ("Workflow",),
    "fanfold.protocols": ("AgentExecutor", "ModelClient", "SessionStore", "Tool", "ToolScope"),
    "fanfold.session.session": ("Session",),
    "fanfold.stores.file_store": ("FileSessionStore",),
    "fanfold.stores.memory_store": ("MemorySessionStore",),
    "fanfold.stores.sqlite_store": ("SqliteSessionStore",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'fanfold' has no attribute '{name}'")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
