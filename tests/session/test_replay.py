"""The law of replay: the same HostEnv values, prompts and model give the same bytes, in every file and every answer."""

import asyncio
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold import Agent, FileSessionStore, PermissionPolicy, Session
from fanfold.contracts.messages import ASK_USER, ModelRequest, ToolMessage, UserMessage
from fanfold.protocols import Lease
from fanfold.testing import ScriptedModel, calls
from fanfold.testing.scripted import Answer, newest_text
from tests.support.open_session import until
from tests.support.tools import RecordingTool


class RecordingStore(FileSessionStore):
    """Remembers every byte that was ever written under each name, though it was removed since."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.written: defaultdict[str, list[bytes]] = defaultdict(list)

    async def append(self, log: str, expected_seq: int, records: Sequence[bytes], lease: Lease | None = None) -> int:
        done = await super().append(log, expected_seq, records, lease)
        self.written[log] += records
        return done

    async def compare_and_set(
        self, document: str, expected_revision: int, data: bytes | None, lease: Lease | None = None
    ) -> int:
        done = await super().compare_and_set(document, expected_revision, data, lease)
        self.written[document].append(data or b"removed")
        return done


def script(request: ModelRequest) -> Answer:
    """By the newest prompt and what came behind it: a tool, one that needs approval, a question, a child, an answer."""
    messages = list(request.transcript)
    begin = max(at for at, message in enumerate(messages) if isinstance(message, UserMessage))
    prompt, done = newest_prompt(messages[begin]), len(messages) - begin - 1
    if prompt.startswith("step"):
        results = sum(isinstance(message, ToolMessage) for message in messages)
        return calls(("look", {"at": prompt})) if results < 2 else f"{prompt} is done"
    rounds: list[Answer] = [
        calls(("look", {"at": "x"}), ("look", {"at": "y"}), text="I look"),
        calls(("write_it", {"to": "disk"})),
        calls((ASK_USER, {"question": "Which?", "options": ["a", "b"]})),
        calls(("task", {"tasks": [{"agent": "explore", "description": "d", "prompt": "step of a child"}]})),
    ]
    round_ = sum(not isinstance(message, ToolMessage) for message in messages[begin + 1 :])
    is_asking = prompt == "go" and round_ < len(rounds)
    return rounds[round_] if is_asking else f"{prompt}: {done} {newest_text(request)[:20]}"


def newest_prompt(message: Any) -> str:
    assert isinstance(message, UserMessage)
    return message.text


async def story(folder: Path) -> dict[str, bytes]:
    """All bytes of a session that did everything, by the name of the file, or of what they are."""
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    wait = asyncio.Event()
    tools = [RecordingTool("look", lambda args: f"saw {args['at']}"), RecordingTool("write_it", is_read_only=False)]
    slow = RecordingTool("slow", wait=wait)
    async with (
        RecordingStore(folder / "store") as store,
        await Agent.create_async(
            models={"scripted/model": ScriptedModel(script)}, tools={tool.spec.name: tool for tool in [*tools, slow]}
        ) as agent,
    ):
        session = await agent.session_async(
            workspace,
            session_id="s",
            session_store=store,
            auto_save=True,
            permission_policy=PermissionPolicy(ask=("write_it",), default_decision="allow"),
            host_env={"sequential_id_prefix": "replay", "fixed_time_ms": 1_700_000_000_000},
            tenant_id="t",
        )
        told: dict[str, bytes] = {}
        told["results"] = _json([await _asked(session), await session.send_async("and then")])
        specs = [{"task_id": f"t{number}", "agent": "explore", "prompt": f"step {number}"} for number in range(3)]
        told["outcomes"] = _json([each.to_dict() for each in await session.parallel_resumable_async(specs, "w")])
        await session.save_async()
        for run in await session.runs_async():
            told[f"events of {run.id}"] = _json([run, await session.run_events_async(run.id)])
        told["history"] = _json([session.history(), session.subagent_tasks()])
        await session.close_async()
    told |= {name: b"\n".join(written) for name, written in store.written.items()}
    told |= {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".lease", ".lock")  # of this process, not of the session
    }
    return told


async def _asked(session: Session) -> Any:
    stream = await session.stream_async("go")
    is_steered = False
    async for item in stream:
        if item.type == "confirmation_required":
            await until(session.pending_confirmations)
            await session.confirm_tool_use_async(session.pending_confirmations()[0].tool_id, True, "fine")
        if item.type == "user_question":
            await until(session.pending_questions)
            await session.steer_async("look left")
            is_steered = await session.answer_question_async(session.pending_questions()[0].question_id, "b")
    assert is_steered
    return await stream.result_async()


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


@pytest.mark.parametrize("attempt", range(3))
def test_two_replays_are_the_same_to_the_last_byte(tmp_path: Path, attempt: int) -> None:
    first = asyncio.run(story(tmp_path / "here"))
    shutil.rmtree(tmp_path / "here")
    second = asyncio.run(story(tmp_path / "here"))
    assert list(first) == list(second)
    for name in first:
        assert first[name] == second[name], name
    kinds = {name.partition("/")[0] for name in first}
    assert {"session", "checkpoint", "facts", "run-events", "workflow", "workspace", "store"} <= kinds
    log = first["workspace/.a3s/effect-log/s.jsonl"]
    assert b"steer" in log
    assert log.splitlines() == first["facts/s"].splitlines()


def test_of_another_folder_only_the_saved_session_knows(tmp_path: Path) -> None:
    here, there = asyncio.run(story(tmp_path / "here")), asyncio.run(story(tmp_path / "there"))
    document, file = "session/s", "store/session/s.json"  # the file begins with a checksum
    assert [name for name in here if here[name] != there[name]] == [document, file]
    assert here[document].replace(b"/here/", b"/there/") == there[document]
    last = msgspec.json.decode(here[document].splitlines()[-1])
    assert last.pop("workspace") == str(tmp_path / "here/workspace")
    assert str(tmp_path) not in str(last)


def test_other_values_give_other_bytes(tmp_path: Path) -> None:
    """Otherwise the laws above would hold of anything."""
    told = asyncio.run(story(tmp_path / "here"))
    assert b"1700000000000" in told["events of run-replay-0"]
    assert b"replay-0" in told["checkpoint/run-replay-0"]
