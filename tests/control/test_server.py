"""ControlServer: what another process may ask of a live session, what it is told, and what it can never do to a run."""

import asyncio
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold import Agent, Session
from fanfold.contracts.facts import ConfirmationAnswered
from fanfold.contracts.messages import ASK_USER, ModelRequest
from fanfold.control import place
from fanfold.control.client import LiveServer, ask, look
from fanfold.control.server import IDLE_SECONDS, MAX_CONNECTIONS, ControlServer
from fanfold.control.wire import (
    MAX_REQUEST_BYTES,
    Answer,
    Cancel,
    Confirm,
    Look,
    Refused,
    Request,
    Seen,
    Steer,
    decode_reply,
    encode_line,
)
from fanfold.errors import ControlError, RunCancelledError, UsageError
from fanfold.testing import Reply, ScriptedModel, calls
from tests.control.served import (
    ASKING,
    CHANGE,
    asked,
    changer,
    facts_of,
    opened,
    server_of,
    until_waiting,
    waiting_in,
    write_then,
)

APPROVE = Confirm(session="s", call_id="call-1", approved=True)
DENY = Confirm(session="s", call_id="call-1", approved=False, reason="not today")


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_an_approval_from_elsewhere_lets_the_run_go_on_and_the_tool_runs_once(tmp_path: Path) -> None:
    tool = changer()

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([CHANGE, "changed"]), tool) as session, ControlServer.of(session):
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            [waiting] = await waiting_in(tmp_path)
            assert waiting.to_dict() == {
                "id": "s/call-1",
                "kind": "approval",
                "source": "live",
                "owner": "s",
                "call_id": "call-1",
                "tool": "change",
                "args": {"to": 1},
                "since_ms": 1_000,
                "process": os.getpid(),
            }
            done = await asked(tmp_path, APPROVE)
            assert done.goes_on
            assert (await run).text == "changed"
            assert await waiting_in(tmp_path) == []

    asyncio.run(main())
    assert len(tool.calls) == 1


def test_a_denied_call_is_never_run_and_its_reason_is_recorded(tmp_path: Path) -> None:
    tool = changer()

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([CHANGE]), tool) as session, ControlServer.of(session):
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            assert (await asked(tmp_path, DENY)).goes_on
            assert (await run).stop_reason == "denied"

    asyncio.run(main())
    assert tool.calls == []
    assert ConfirmationAnswered(tool_call_id="call-1", approved=False, reason="not today") in [
        fact.payload for fact in facts_of(tmp_path)
    ]


def test_a_question_is_shown_with_its_options_and_answered(tmp_path: Path) -> None:
    question = calls((ASK_USER, {"question": "which?", "options": ["a", "b"]}))

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([question, "so a"])) as session, ControlServer.of(session):
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            [waiting] = await waiting_in(tmp_path)
            assert (waiting.kind, waiting.question, waiting.options, waiting.allow_free_text) == (
                "question",
                "which?",
                ["a", "b"],
                False,
            )
            assert (await asked(tmp_path, Answer(session="s", call_id="call-1", text="a"))).goes_on
            assert (await run).text == "so a"

    asyncio.run(main())


def test_a_steps_call_surfaces_at_its_session_and_names_the_step(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(write_then("done"))) as session:
            server = ControlServer(session.workspace, session.portal)
            server.add(session, "nightly")
            async with server:
                specs = [
                    {"task_id": each, "agent": "general", "prompt": f"made-{each}", "description": f"tidy {each}"}
                    for each in ("a", "b")
                ]
                run = asyncio.create_task(session.parallel_async(specs))
                await until_waiting(session, 2)
                first, second = await waiting_in(tmp_path)
                assert (first.id, first.step, first.about) == ("nightly/a/call-1", "a", "tidy a")
                for each in (first, second):
                    request = Confirm(session="nightly", call_id=each.call_id, approved=each is first)
                    assert (await asked(tmp_path, request)).goes_on
                assert [outcome.success for outcome in await run] == [True, False]

    asyncio.run(main())
    assert sorted(path.name for path in tmp_path.glob("made-*")) == ["made-a"]


def test_of_two_who_answer_at_once_one_wins_and_the_other_is_told_who_did(tmp_path: Path) -> None:
    tool = changer()

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([CHANGE, "changed"]), tool) as session, ControlServer.of(session):
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            server = await server_of(tmp_path)
            both = await asyncio.gather(ask(server, APPROVE), ask(server, DENY), return_exceptions=True)
            [lost] = [each for each in both if isinstance(each, ControlError)]
            [won] = [each for each in both if not isinstance(each, BaseException)]
            assert won.goes_on
            assert lost.code == "ALREADY_ANSWERED"
            assert str(lost).endswith(f"by process {os.getpid()}")
            result = await run
            assert ("approved" in str(lost)) == (result.text == "changed") == (len(tool.calls) == 1)
            with pytest.raises(ControlError) as caught:
                await ask(server, APPROVE)
            assert caught.value.code == "ALREADY_ANSWERED"

    asyncio.run(main())


def test_what_a_log_left_parked_is_recorded_and_no_run_begins(tmp_path: Path) -> None:
    tool = changer()

    async def park() -> None:
        async with opened(tmp_path, ScriptedModel([CHANGE]), tool) as session:
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            run.cancel()
            await asyncio.wait({run})

    async def answer() -> None:
        async with opened(tmp_path, ScriptedModel(["changed"]), tool) as session, ControlServer.of(session):
            [waiting] = await waiting_in(tmp_path)
            assert (waiting.id, waiting.since_ms) == ("s/call-1", None)
            assert not (await asked(tmp_path, APPROVE)).goes_on
            assert tool.calls == []
            assert await waiting_in(tmp_path) == []
            assert (await session.resume_run_async()).text == "changed"

    asyncio.run(park())
    asyncio.run(answer())
    assert len(tool.calls) == 1


def test_a_call_that_a_new_prompt_gives_up_does_not_wait_while_that_prompt_runs(tmp_path: Path) -> None:
    wait = asyncio.Event()

    async def script(request: ModelRequest) -> Reply:
        if request.transcript.length == 1:
            return CHANGE
        await wait.wait()
        return Reply(text="other")

    async def main() -> None:
        model = ScriptedModel(script)
        async with opened(tmp_path, model, changer(), approvals="refuse") as session, ControlServer.of(session):
            with pytest.raises(Exception, match="waits for approval"):
                await session.send_async("go")
            assert [each.id for each in await waiting_in(tmp_path)] == ["s/call-1"]
            run = asyncio.create_task(session.send_async("something else"))
            while len(model.requests) < 2:
                await asyncio.sleep(0)
            assert await waiting_in(tmp_path) == []
            with pytest.raises(ControlError) as caught:
                await asked(tmp_path, APPROVE)
            assert caught.value.code == "NOT_WAITING"
            wait.set()
            assert (await run).text == "other"

    asyncio.run(main())


# ---- control ---------------------------------------------------------------------------------------------------------


def test_a_steer_is_told_once_and_its_receipt_comes_back_as_often_as_it_is_asked_for(tmp_path: Path) -> None:
    tool = changer()

    async def main() -> None:
        model = ScriptedModel([CHANGE, "changed"])
        async with opened(tmp_path, model, tool) as session, ControlServer.of(session):
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            steer = Steer(session="s", text="and be quick", request_id="q1")
            first, again = await asked(tmp_path, steer), await asked(tmp_path, steer)
            assert first.receipt is not None
            assert (first.receipt.request_id, first.receipt.state) == ("q1", "accepted")
            assert again.receipt == first.receipt
            with pytest.raises(ControlError) as caught:
                await asked(tmp_path, Steer(session="s", text="something else", request_id="q1"))
            assert caught.value.code == "DUPLICATE_REQUEST"
            await asked(tmp_path, APPROVE)
            await run
            settled = await asked(tmp_path, steer)
            assert settled.receipt is not None
            assert settled.receipt.state == "applied"

    asyncio.run(main())
    texts = [getattr(fact.payload, "text", None) for fact in facts_of(tmp_path)]
    assert texts.count("and be quick") == 1


@pytest.mark.parametrize("request_", [Steer(session="s", text="hello"), Cancel(session="s")])
def test_an_idle_session_has_nothing_to_control(tmp_path: Path, request_: Request) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session, ControlServer.of(session):
            with pytest.raises(ControlError) as caught:
                await asked(tmp_path, request_)
            assert caught.value.code == "NO_ACTIVE_RUN"

    asyncio.run(main())


def test_a_run_is_cancelled_and_its_conversation_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([CHANGE]), changer()) as session, ControlServer.of(session):
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            done = await asked(tmp_path, Cancel(session="s", reason="enough"))
            assert done.receipt is not None
            assert done.receipt.operation == "interrupt"
            with pytest.raises(RunCancelledError):
                await run
            snapshot = session.current_run()
            assert snapshot is not None
            assert snapshot.status == "cancelled"

    asyncio.run(main())


def test_one_step_is_cancelled_or_all_of_a_fan_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(write_then("x"))) as session, ControlServer.of(session):
            specs = [{"task_id": each, "agent": "general", "prompt": "p"} for each in ("a", "b", "c")]
            run = asyncio.create_task(session.parallel_async(specs))
            await until_waiting(session, 3)
            with pytest.raises(ControlError, match="no step 'd' runs in 's'; known: a, b, c"):
                await asked(tmp_path, Cancel(session="s", step="d"))
            assert (await asked(tmp_path, Cancel(session="s", step="b"))).cancelled == 1
            while len(session.pending_confirmations()) > 2:
                await asyncio.sleep(0)
            assert (await asked(tmp_path, Cancel(session="s"))).cancelled == 1
            assert [outcome.error_code for outcome in await run] == ["RUN_CANCELLED"] * 3

    asyncio.run(main())


# ---- what is served --------------------------------------------------------------------------------------------------


def test_a_session_that_is_not_served_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session, ControlServer.of(session):
            for request in (
                Confirm(session="other", call_id="c", approved=True),
                Steer(session="other", text="x"),
                Cancel(session="other"),
            ):
                with pytest.raises(ControlError, match="serves no session 'other'") as caught:
                    await asked(tmp_path, request)
                assert caught.value.code == "NOT_SERVED"

    asyncio.run(main())


def test_closed_and_removed_sessions_are_served_no_longer(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Agent.create_async(models={"scripted/model": ScriptedModel([])}) as agent:
            one, two, three = [await agent.session_async(tmp_path, session_id=each) for each in ("one", "two", "three")]
            async with ControlServer.of(one, two, three) as server:
                assert await names(tmp_path) == ["one", "two", "three"]
                await one.close_async()
                server.remove(two)
                assert await names(tmp_path) == ["three"]

    asyncio.run(main())


async def names(workspace: Path) -> list[str]:
    return [each.name for _, seen in (await look(workspace)).answered for each in seen.sessions]


def test_a_server_is_for_one_folder_and_a_name_for_one_session(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "a")
        async with await Agent.create_async(models={"scripted/model": ScriptedModel([])}) as agent:
            here = await agent.session_async(tmp_path / "a")
            by_link = await agent.session_async(tmp_path / "link")
            elsewhere = await agent.session_async(tmp_path)
            server = ControlServer.of(here, by_link)
            with pytest.raises(UsageError, match="and this server is for"):
                server.add(elsewhere)
            with pytest.raises(UsageError, match="another session is served as"):
                server.add(by_link, here.session_id)

    asyncio.run(main())


def test_all_servers_of_a_workspace_are_found_and_none_of_another(tmp_path: Path) -> None:
    async def main() -> None:
        deep = tmp_path / ("d" * 120) / ("e" * 120)
        deep.mkdir(parents=True)
        async with (
            opened(deep, ScriptedModel([]), session_id="one") as one,
            opened(deep, ScriptedModel([]), session_id="two") as two,
            opened(tmp_path, ScriptedModel([])) as other,
            ControlServer.of(one),
            ControlServer.of(two),
            ControlServer.of(other),
        ):
            assert sorted(await names(deep)) == ["one", "two"]
            assert await names(tmp_path) == ["s"]

    asyncio.run(main())


def test_blocking_hosts_serve_too(tmp_path: Path) -> None:
    tool = changer()
    with Agent.create(models={"scripted/model": ScriptedModel([CHANGE, "changed"])}, tools={"change": tool}) as agent:
        session = agent.session(tmp_path, session_id="s", permission_policy=ASKING)
        with ControlServer.of(session) as server:
            stream = session.stream("go")
            while not session.pending_confirmations():
                next(stream)
            assert asyncio.run(asked(tmp_path, APPROVE)).goes_on
            assert stream.result().text == "changed"
            path = server.path
        assert path is not None
        assert not path.exists()


# ---- the socket ------------------------------------------------------------------------------------------------------


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of its own; pytest's are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="ff", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def test_nobody_else_can_reach_the_socket_and_nothing_is_left_of_it(tmp_path: Path, runtime: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            server = ControlServer.of(session)
            await server.start_async()
            await server.start_async()
            assert server.path is not None
            assert server.path.parent == runtime / "fanfold"
            assert stat.S_IMODE(server.path.parent.stat().st_mode) == 0o700
            assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
            assert len(os.listdir(server.path.parent)) == 1
            await server.close_async()
            await server.close_async()
            assert os.listdir(runtime / "fanfold") == []
            assert server.path is None
            async with server:
                assert await names(tmp_path) == ["s"]

    asyncio.run(main())
    assert os.listdir(runtime / "fanfold") == []


def test_a_server_that_nobody_closed_leaves_nothing_either(tmp_path: Path, runtime: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            await ControlServer.of(session).start_async()

    asyncio.run(main())
    assert os.listdir(runtime / "fanfold") == []


@pytest.mark.parametrize("fault", ["link", "file", "open to others"])
def test_a_folder_that_is_not_only_ours_is_never_used(tmp_path: Path, runtime: Path, fault: str) -> None:
    folder = runtime / "fanfold"
    if fault == "link":
        (runtime / "target").mkdir(mode=0o700)
        folder.symlink_to(runtime / "target")
    elif fault == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o770)

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session, ControlServer.of(session) as server:
            assert server.path is not None
            assert runtime not in server.path.parents
            assert await names(tmp_path) == ["s"]

    asyncio.run(main())
    assert fault == "file" or os.listdir(folder) == []


def test_a_runtime_folder_whose_name_is_too_long_is_passed_over(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = runtime / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session, ControlServer.of(session):
            assert await names(tmp_path) == ["s"]

    asyncio.run(main())
    assert os.listdir(long) == []


def test_a_runtime_folder_that_the_sandbox_of_tools_shows_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="ff", dir="/var/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        listener, path = place.open_listener(tmp_path)
        listener.close()
        place.remove(path)
        assert os.listdir(folder) == []
        assert not path.is_relative_to(folder)


def test_a_workspace_around_every_such_folder_is_not_served() -> None:
    with pytest.raises(ControlError, match="the tools of a session in / could reach the socket") as caught:
        place.open_listener("/")
    assert caught.value.code == "CONTROL_UNAVAILABLE"


def dead_socket(server_path: Path, *, of_same_workspace: bool = True) -> Path:
    """A socket beside that one, as a process leaves it that was killed."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    key = server_path.name.partition(".")[0] if of_same_workspace else "0" * 16
    left = server_path.with_name(f"{key}.{ended.pid}.1.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(left))
    assert left.exists()
    return left


def test_the_socket_of_a_dead_process_is_replaced_by_servers_and_removed_by_clients(
    tmp_path: Path, runtime: Path
) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            async with ControlServer.of(session) as server:
                assert server.path is not None
                left = dead_socket(server.path)
                found = await look(tmp_path)
                assert ([seen.process for _, seen in found.answered], found.silent) == ([os.getpid()], [])
                assert not left.exists()
                left = dead_socket(server.path)
                other = dead_socket(server.path, of_same_workspace=False)
            async with ControlServer.of(session):
                assert not left.exists()
                assert not other.exists()

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_the_socket_of_its_parent(tmp_path: Path) -> None:
    listener, path = place.open_listener(tmp_path)
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        there.send(b"x")
        there.recv(1)
        os._exit(0)
    try:
        here.recv(1)
        listener.close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer, pytest.raises(ConnectionRefusedError):
            peer.connect(os.fspath(path))
    finally:
        here.send(b"x")
        os.waitpid(child, 0)
        here.close()
        there.close()
        place.remove(path)


def test_a_peer_of_another_user_is_hung_up_on(tmp_path: Path) -> None:
    if not hasattr(socket, "SO_PEERCRED"):
        pytest.skip("the system does not tell who the peer is")

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            server = ControlServer(session.workspace, session.portal, uid=os.geteuid() + 1)
            server.add(session)
            async with server:
                found = await look(tmp_path)
                assert found.answered == []
                assert [error.code for _, error in found.silent] == ["CONTROL_UNREACHABLE"]

    asyncio.run(main())


def test_where_there_are_no_unix_sockets_the_error_says_so() -> None:
    with pytest.raises(ControlError, match="Python has no Unix sockets on") as caught:
        place.require_unix_sockets(has_them=False)
    assert caught.value.code == "CONTROL_UNAVAILABLE"


# ---- clients that mean harm, or nothing ------------------------------------------------------------------------------


async def connected(server: LiveServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(str(server.path), limit=32 * 1024 * 1024)


GARBAGE = [
    b"\n" * 1000,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    bytes(range(256)) * 64,
    b'{"v":1,"op":"look"',
    b"[" * 200_000 + b"\n",
    b"x" * (MAX_REQUEST_BYTES + 1_000_000),
]


def test_garbage_hurts_neither_the_run_nor_other_clients(tmp_path: Path) -> None:
    tool = changer()

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([CHANGE, "changed"]), tool) as session, ControlServer.of(session):
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            server = await server_of(tmp_path)
            for garbage in GARBAGE:
                reader, writer = await connected(server)
                writer.write(garbage)
                writer.write_eof()
                try:
                    replies = [decode_reply(line) for line in (await reader.read()).splitlines()]
                    assert all(isinstance(each, Refused) and each.code == "INVALID_REQUEST" for each in replies)
                except ConnectionError:
                    pass  # hung up on in the middle of it
                writer.transport.abort()
            assert not run.done()
            assert (await asked(tmp_path, APPROVE)).goes_on
            assert (await run).text == "changed"

    asyncio.run(main())


def test_a_request_that_is_too_long_is_refused_and_the_connection_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session, ControlServer.of(session):
            reader, writer = await connected(await server_of(tmp_path))
            writer.write(b"x" * (MAX_REQUEST_BYTES + 1))
            reply = decode_reply(await reader.readuntil(b"\n"))
            assert isinstance(reply, Refused)
            assert reply.message == f"a request may have {MAX_REQUEST_BYTES} bytes at most"
            assert await reader.read() == b""
            writer.close()

    asyncio.run(main())


def test_a_connection_may_carry_several_requests(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session, ControlServer.of(session):
            reader, writer = await connected(await server_of(tmp_path))
            writer.write(encode_line(Look()) + b"nonsense\n" + encode_line(Look()))
            replies = [decode_reply(await reader.readuntil(b"\n")) for _ in range(3)]
            assert [type(each) for each in replies] == [Seen, Refused, Seen]
            writer.close()

    asyncio.run(main())


def test_more_connections_than_allowed_are_hung_up_on_and_the_rest_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session, ControlServer.of(session):
            server = await server_of(tmp_path)
            held = [await connected(server) for _ in range(MAX_CONNECTIONS)]
            for _, writer in held:
                writer.write(encode_line(Look()))
            assert all([isinstance(decode_reply(await reader.readline()), Seen) for reader, _ in held])
            with pytest.raises(ControlError) as caught:
                await ask(server, Cancel(session="s"))
            assert caught.value.code == "CONTROL_UNREACHABLE"
            for _, writer in held:
                writer.close()
                await writer.wait_closed()
            while not (await look(tmp_path)).answered:
                await asyncio.sleep(0)

    asyncio.run(main())


def test_a_client_that_takes_no_reply_cannot_hold_up_the_end(tmp_path: Path) -> None:
    async def main(session: Session) -> float:
        async with ControlServer.of(session):
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            _, writer = await connected(await server_of(tmp_path))
            writer.write(encode_line(Look()) * 50)
            await asked(tmp_path, Cancel(session="s"))
            await asyncio.wait({run})
            assert isinstance(run.exception(), RunCancelledError)
            start = asyncio.get_running_loop().time()
        writer.close()
        return asyncio.get_running_loop().time() - start

    async def both() -> None:
        big = calls(("change", {"content": "x" * 900_000}))
        async with opened(tmp_path, ScriptedModel([big]), changer()) as session:
            assert await main(session) < IDLE_SECONDS / 2

    asyncio.run(both())


def test_a_client_that_leaves_before_its_answer_has_still_been_heard(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel([CHANGE, "changed"])
        async with opened(tmp_path, model, changer()) as session, ControlServer.of(session):
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            _, writer = await connected(await server_of(tmp_path))
            writer.write(encode_line(APPROVE))
            writer.transport.abort()
            # The kernel may throw away what was not read when the other side has gone: either is a clean end.
            await asyncio.wait({run}, timeout=0.2)
            if not run.done():
                await asked(tmp_path, APPROVE)
            assert (await run).text == "changed"

    asyncio.run(main())


def test_who_asked_is_told_though_the_server_is_closed_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel([CHANGE, "changed"])
        async with opened(tmp_path, model, changer()) as session:
            server = ControlServer.of(session)
            await server.start_async()
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            asking = asyncio.create_task(asked(tmp_path, APPROVE))
            await run
            await server.close_async()
            assert (await asking).goes_on

    asyncio.run(main())


def test_a_server_that_has_gone_serves_nothing_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            async with ControlServer.of(session):
                server = await server_of(tmp_path)
            with pytest.raises(ControlError, match=f"process {os.getpid()} is not there any more") as caught:
                await ask(server, Look())
            assert caught.value.code == "NOT_SERVED"
            assert (await look(tmp_path)).answered == []

    asyncio.run(main())


def test_a_process_that_keeps_silent_is_told_apart_from_one_that_has_gone(tmp_path: Path) -> None:
    async def main() -> None:
        listener, path = place.open_listener(tmp_path)
        with listener:
            found = await look(tmp_path, timeout_seconds=0.05)
            assert found.answered == []
            [(server, error)] = found.silent
            assert (server.path, str(error)) == (path, f"process {os.getpid()} did not answer within 0.05 s")
        place.remove(path)

    asyncio.run(main())


def test_a_process_that_hangs_up_in_the_middle_of_its_answer_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        listener, path = place.open_listener(tmp_path)
        with listener:
            asking = asyncio.create_task(ask(LiveServer(path, 7), Look()))
            peer, _ = await asyncio.get_running_loop().sock_accept(listener)
            peer.sendall(b'{"v":1,"reply":"do')
            peer.close()
            with pytest.raises(ControlError, match="process 7 ended before it answered"):
                await asking
        place.remove(path)

    asyncio.run(main())
