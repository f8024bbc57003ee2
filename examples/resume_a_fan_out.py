"""A fan-out of which one step fails, the plan of what is left, and the call again: only that step is asked."""

import tempfile
from pathlib import Path

from fanfold import Agent, FileSessionStore
from fanfold.errors import ProviderError
from fanfold.testing import ScriptedModel

QUESTIONS = [{"task_id": name, "agent": "answer", "prompt": f"What is in {name}?"} for name in ("src", "tests", "docs")]
DOWN = ProviderError("the server is down", kind="server", retryable=False)

with tempfile.TemporaryDirectory() as workspace, FileSessionStore(Path(workspace) / "store") as store:
    failing = ScriptedModel({"tests": DOWN, "src": "code", "docs": "words"})
    with Agent.create(models={"scripted/model": failing}) as agent:
        session = agent.session(workspace, session_store=store)
        outcomes = session.parallel_resumable(QUESTIONS, "tour")
        print([outcome.success for outcome in outcomes])
        for step in session.plan_resume(QUESTIONS, "tour").steps:
            print(step.task_id, step.action, "-", step.reason)

    working = ScriptedModel(["laws"])
    with Agent.create(models={"scripted/model": working}) as agent:
        session = agent.session(workspace, session_store=store)
        print([outcome.output for outcome in session.parallel_resumable(QUESTIONS, "tour")])
        print("model calls:", len(failing.requests), "before,", len(working.requests), "after")
        print("left over:", session.checkpoints())
