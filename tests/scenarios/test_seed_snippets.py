"""The specification's own snippets, word for word but for the import line, where it stands beside the checkout."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.chat_server import ChatServer

ROOT = Path(__file__).parents[2]
SEEDS = ROOT.parent / "shared" / "seeds"
IMPORT = r"from a3s_code import Agent, SessionOptions(, FileSessionStore)?\n"
END = "\nsession.close()\n"
EXPECTED = {
    "parallel": r"\[parallel\] langs: success=True structured=None\n"
    r"\[parallel\] verdict: success=True structured=\{'memory_safe': (True|False)\}\n",
    "pipeline": r"\[pipeline\] final='.+'\n",
    "resumable": r"deps:True tests:True\n",
    "budget": r"\[budget\] a: success=True\n\[budget\] b: success=True\nspent \d+ / 50000 tokens\n",
}

pytestmark = [
    pytest.mark.spec,
    pytest.mark.skipif(not SEEDS.is_dir(), reason="the specification is not beside this checkout"),
]

ACL = """
default_model = "here/fake"
providers "here" {
  base_url = "%s"
  structured_output = "json_schema"
}
"""


def snippets() -> dict[str, str]:
    """The whole Python programs of seed 000, by the word that their output begins with."""
    [seed] = SEEDS.glob("000_*.txt")
    text = seed.read_text()
    found: dict[str, str] = {}
    for start in re.finditer(IMPORT, text):
        program = text[start.start() : text.index(END, start.start()) + len(END)]
        names = set(re.findall(r'print\(f"\[(\w+)\]', program)) or {"resumable"}
        found[names.pop()] = program
    return found


PIECES = {
    "parallel": ("outcomes = session.parallel([\n", 'o["output"])\n'),
    "pipeline": ("def survey(ctx):\n", "[survey, review])\n"),
    "resumable": ("from a3s_code import Agent, FileSessionStore, SessionOptions\n", '], "release-audit")\n'),
}
BEFORE = """
import os
from tests.support.scripted_agent import Agent
agent = Agent.create("agent.acl")
open_session = agent.session
agent.session = lambda workspace, *more: open_session("." if workspace == "/repo" else workspace, *more)
session = agent.session(".")
"""
AFTER = """
assert [(o["agent"], o["success"]) for o in outcomes] in (
    [("explore", True), ("review", True)], [("review", True)] * 2
), outcomes
assert os.path.isdir("./.a3s/sessions") == ("opts" in globals())
agent.close()
"""


def pieces() -> dict[str, str]:
    """The Python of seed 001, which is written for a session, or an agent, that is there."""
    [seed] = SEEDS.glob("001_*.txt")
    text = seed.read_text()
    places = {name: (text.index(begin), end) for name, (begin, end) in PIECES.items()}
    return {name: text[start : text.index(end, start) + len(end)] for name, (start, end) in places.items()}


def run(program: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", EXPECTED)
def test_on_a_scripted_model(name: str, tmp_path: Path) -> None:
    program = snippets()[name].replace("from a3s_code", "from tests.support.scripted_agent")
    assert re.fullmatch(EXPECTED[name], run(program, tmp_path))


@pytest.mark.parametrize("name", EXPECTED)
def test_on_a_local_http_server(name: str, tmp_path: Path) -> None:
    program = snippets()[name].replace("from a3s_code", "from fanfold")

    async def main() -> str:
        async with ChatServer() as server:
            (tmp_path / "agent.acl").write_text(ACL % server.base_url)
            return await asyncio.to_thread(run, program, tmp_path)

    assert re.fullmatch(EXPECTED[name], asyncio.run(main()))


@pytest.mark.parametrize("name", PIECES)
def test_of_several_machines(name: str, tmp_path: Path) -> None:
    piece = pieces()[name].replace("from a3s_code", "from tests.support.scripted_agent")
    assert run(BEFORE + piece + AFTER, tmp_path).count("True") == (2 if name == "parallel" else 0)


# ---- seeds 002 and 003 ----------------------------------------------------------------------------------------------

CONTROL = ("state = await session.run_control_snapshot_async()\n", '"用户停止运行"})\n')
CLOSE = ("session.close()\nif session.is_closed():\n", "    pass\n")
REGISTRY = ("ids = agent.list_sessions()\n", "print(agent.is_closed())\n")
TAGS_002 = ("opts = SessionOptions()\n", "print(session.tenant_id, session.principal)\n")
TAGS_003 = ("opts = SessionOptions()\nopts.tenant_id", "# 'trace-example'\n")
GUARD = ("class MyGuard:\n", "session.set_budget_guard(None)\n")
OPENED = """
from fanfold import SessionOptions
from tests.support.scripted_agent import Agent
agent = Agent.create("agent.acl")
open_session = agent.session
agent.session = lambda workspace, *more: open_session(".", *more)
session = agent.session("/repo")
"""
GUARDED = """
metered = []
over_limit = lambda session_id, tokens: metered and tokens > 0
meter = lambda session_id, usage: metered.append(usage["total_tokens"])
"""
USED = """
session = agent.session("/path/to/project", opts)
assert session.send("first").text and metered[0] > 0
try:
    session.send("second")
except RuntimeError as error:
    assert str(error) == "Budget exhausted on 'tokens': monthly cap reached", error
else:
    raise AssertionError("the guard was not asked")
session.set_budget_guard(None)
assert session.send("third").text and len(metered) == 1
agent.close()
"""
CONTROLLED = """
import asyncio
from fanfold import Agent
from fanfold.errors import RunCancelledError
from fanfold.testing import ScriptedModel

async def ask(request):
    await asyncio.Event().wait()

async def control(session):
{snippet}
    return receipt

async def main():
    agent = await Agent.create_async(models={{"a/b": ScriptedModel(ask)}})
    async with agent, await agent.session_async(".") as session:
        run = asyncio.create_task(session.send_async("go"))
        while (state := await session.run_control_snapshot_async()) is None or not state.get("turn_id"):
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        receipt = await control(session)
        assert receipt["operation"] == "steer"
        try:
            await run
        except RunCancelledError:
            print((await session.runs_async())[-1]["status"])
        assert await session.run_control_snapshot_async() is None

asyncio.run(main())
"""


def piece(seed: str, place: tuple[str, str]) -> str:
    [path] = SEEDS.glob(f"{seed}_*.txt")
    text = path.read_text()
    start = text.index(place[0])
    return text[start : text.index(place[1], start) + len(place[1])]


def test_of_run_control(tmp_path: Path) -> None:
    snippet = "".join(f"    {line}\n" for line in piece("002", CONTROL).splitlines())
    assert run(CONTROLLED.format(snippet=snippet), tmp_path) == "accepted\ncancelled\n"


def test_of_closing_a_session(tmp_path: Path) -> None:
    after = "assert session.is_closed()\nsession.close()\nagent.close()\n"
    assert run(OPENED + piece("002", CLOSE) + after, tmp_path) == ""


def test_of_the_agents_registry(tmp_path: Path) -> None:
    assert run(OPENED + piece("002", REGISTRY), tmp_path) == "True\n"


def test_of_identity_tags(tmp_path: Path) -> None:
    assert run(OPENED + piece("002", TAGS_002) + "agent.close()\n", tmp_path) == "tenant-example principal-example\n"
    expected = "tenant-example\nprincipal-example\nagent-template-example\ntrace-example\n"
    assert run(OPENED + piece("003", TAGS_003) + "agent.close()\n", tmp_path) == expected


def test_of_the_budget_guard(tmp_path: Path) -> None:
    snippet = piece("003", GUARD)
    assert "def record_after_llm" in snippet
    assert run(OPENED + GUARDED + snippet + USED, tmp_path) == ""
