"""Child tasks as the tracker tells of them (notes 5.6)."""

from typing import Any, Literal

from fanfold.contracts.record import Record

TaskStatus = Literal["running", "completed", "failed", "cancelled"]


class TaskProgress(Record, frozen=True, kw_only=True):
    timestamp_ms: int
    status: str
    """`tool_started`, `tool_completed`, `turn_completed`"""
    metadata: dict[str, Any]


class SubagentTask(Record, frozen=True, kw_only=True):
    """One child of a session, running or ended."""

    task_id: str
    parent_session_id: str
    child_session_id: str
    agent: str
    description: str
    status: TaskStatus
    started_ms: int
    updated_ms: int
    finished_ms: int | None = None
    output: str | None = None
    success: bool | None = None
    progress: tuple[TaskProgress, ...] = ()
    """The newest ones."""
