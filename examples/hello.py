"""A session, a fan-out and a pipeline on a scripted model: runs without a key or a network."""

import tempfile

from fanfold import Agent
from fanfold.testing import ScriptedModel, echo

with tempfile.TemporaryDirectory() as workspace, Agent.create(models={"scripted/echo": ScriptedModel(echo)}) as agent:
    session = agent.session(workspace)
    print(session.send("Hello, log.").text)

    outcomes = session.parallel(
        [{"task_id": f"t{number}", "agent": "answer", "prompt": f"question {number}"} for number in range(3)]
    )
    print([outcome.output for outcome in outcomes])

    results = session.pipeline(
        ["one", "two"],
        [
            lambda ctx: {"task_id": "first", "agent": "answer", "prompt": f"about {ctx['item']}"},
            lambda ctx: {"task_id": "second", "agent": "answer", "prompt": f"shorter: {ctx['previous']['output']}"},
        ],
    )
    print([result.output if result else None for result in results])
