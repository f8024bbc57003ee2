"""A run that dies between two model calls, and the next process that goes on: the first call is not made again."""

import tempfile

from fanfold import Agent
from fanfold.errors import ProviderError
from fanfold.testing import ScriptedModel, calls

with tempfile.TemporaryDirectory() as workspace:
    dying = ScriptedModel([calls(("ls", {})), ProviderError("the power went out", kind="connection", retryable=False)])
    with Agent.create(models={"scripted/model": dying}) as agent:
        try:
            agent.session(workspace, session_id="nightly").send("What is here?")
        except ProviderError as error:
            print("stopped:", error)

    fresh = ScriptedModel(["An empty directory."])
    with Agent.create(models={"scripted/model": fresh}) as agent:
        print("resumed:", agent.session(workspace, session_id="nightly").resume_run().text)
    print("model calls:", len(dying.requests), "before,", len(fresh.requests), "after")
