"""A process that used a model ends by itself, in silence and with exit code 0, whatever state it left behind."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.localmodel, pytest.mark.timeout(300)]

START = """
import asyncio, threading
from fanfold.contracts.messages import ModelRequest, UserMessage, append
from fanfold.contracts.settings import ProviderSettings
from fanfold.providers.local import LocalClient

client = LocalClient(ProviderSettings(name="local", kind="local", slots=2, threads=1), None, "default")

def ask(limit, deltas=None, schema=None):
    prompt = append(None, UserMessage("Count."))
    settings = {"max_output_tokens": limit, "output_schema": schema}
    return client.generate(ModelRequest(model="default", system="", transcript=prompt, **settings), deltas)

endless = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}, "minItems": 9999}}}
endless["required"] = ["n"]
is_busy = threading.Event()

class Heard:
    def text(self, piece):
        is_busy.set()

def work():
    try:
        asyncio.run(ask(4000, Heard(), endless))
    except Exception as error:
        print("ended with", type(error).__name__)

async def main():
    await ask(4)
"""
ENDINGS = {
    "closed": "asyncio.run(main()); asyncio.run(client.close())",
    "never used": "",
    "close forgotten": "asyncio.run(main())",
    "a thread still generates": "threading.Thread(target=work).start(); is_busy.wait()",
    "a daemon thread still generates": "threading.Thread(target=work, daemon=True).start(); is_busy.wait()",
    "a task was left to the loop's end": """
async def leave():
    task = asyncio.create_task(ask(4000, Heard(), endless))
    await asyncio.to_thread(is_busy.wait)
asyncio.run(leave())
""",
}
NEEDS_TO_HEAR = {"a thread still generates": "ended with LifecycleError\n"}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends_by_itself(ending: str) -> None:
    code = f"{START}\n{ENDINGS[ending]}\nprint('end of main')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("end of main\n")
    assert run.stdout.endswith(NEEDS_TO_HEAR.get(ending, ""))
