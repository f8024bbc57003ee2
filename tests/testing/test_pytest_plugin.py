"""The pytest plugin, by running pytest on tests that use it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fanfold.testing import Cassette
from fanfold.testing.session_factory import SessionFactory

pytest_plugins = ["pytester"]
LOADED = (Cassette, SessionFactory)
"""Before pytester copies `sys.modules`, so that its runs share what is loaded."""

CONFTEST = """
import pytest
from fanfold.testing import ScriptedModel, echo

@pytest.fixture
def cassette_model():
    return ScriptedModel(lambda request: f"live: {echo(request)}")
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project of somebody who has fanfold, with warnings as errors."""
    pytester.makeini("[pytest]\nfilterwarnings =\n    error\n    ignore:Module already imported so cannot be rewritten")
    pytester.makeconftest(CONFTEST)
    return pytester


def run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "fanfold.testing.pytest_plugin", *args)


# ---- sessions -------------------------------------------------------------------------------------------------------


def test_a_session_answers_from_a_script_in_blocking_and_async_tests(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import asyncio

        def test_blocking(agent_session, tmp_path):
            session = agent_session(["hello"])
            assert session.workspace == str(tmp_path)
            assert session.send("hi").text == "hello"

        def test_async(agent_session):
            async def main():
                session = agent_session(["first", "second"])
                assert (await session.send_async("a")).text == "first"
                assert (await session.send_async("b")).text == "second"
            asyncio.run(main())

        def test_two_sessions(agent_session, scripted_model):
            model = scripted_model({"^a": "one", "^b": "two"})
            first, second = agent_session(model), agent_session(model)
            assert first.session_id == "id-0"
            assert first.session_id != second.session_id
            assert [first.send("a").text, second.send("b").text] == ["one", "two"]
            assert len(model.requests) == 2

        def test_options_go_where_they_belong(agent_session, tmp_path, manual_clock):
            from fanfold import HostEnv
            (tmp_path / "w").mkdir()
            session = agent_session(["x"], workspace=tmp_path / "w", session_id="mine", model="a/b",
                                    host_env=HostEnv(clock=manual_clock), max_tool_rounds=3)
            assert (session.session_id, session.send("x").text) == ("mine", "x")
            assert (tmp_path / "w" / ".a3s" / "effect-log" / "mine.jsonl").exists()
        """
    )
    run(project, "-W", "error").assert_outcomes(passed=4)


def test_tools_may_be_given_as_they_are(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        from fanfold import ToolOutput, ToolSpec
        from fanfold.testing import calls

        class Look:
            spec = ToolSpec(name="look", description="", parameters={"type": "object"}, is_read_only=True)
            async def run(self, args, scope):
                return ToolOutput(output=f"saw {args['at']}")

        def test_it(agent_session, scripted_model):
            for tools in ([Look()], {"look": Look()}):
                model = scripted_model([calls(("look", {"at": "x"})), "it is x"])
                assert agent_session(model, tools=tools).send("?").text == "it is x"
                assert model.requests[1].transcript.message.output == "saw x"
        """
    )
    run(project).assert_outcomes(passed=1)


def test_a_session_that_is_still_at_work_is_stopped(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import asyncio
        from fanfold.testing import Reply

        def test_it(agent_session, scripted_model):
            model = scripted_model([Reply(text="late", delay=3600)])
            session = agent_session(model)
            stream = session.stream("hi")
            assert next(iter(stream)).type == "agent_start"
            global kept
            kept = model

        def test_it_has_ended():
            assert kept.running == 0
        """
    )
    run(project).assert_outcomes(passed=2)


def test_a_task_that_is_left_behind_fails_the_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import asyncio
        from fanfold import ToolOutput, ToolSpec
        from fanfold.testing import calls

        async def forgotten():
            await asyncio.sleep(3600)

        class Leak:
            spec = ToolSpec(name="leak", description="", parameters={"type": "object"}, is_read_only=True)
            async def run(self, args, scope):
                self.task = asyncio.create_task(forgotten())
                return ToolOutput(output="done")

        def test_it(agent_session):
            assert agent_session([calls(("leak", {})), "ok"], tools=[Leak()]).send("x").text == "ok"
        """
    )
    result = run(project)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*left behind by agent_session: task forgotten*"])


def test_a_thread_that_is_left_behind_fails_the_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import threading
        import fanfold.testing.session_factory as factory
        factory._THREAD_SECONDS = 0.01
        end = threading.Event()

        def test_it(agent_session):
            threading.Thread(target=end.wait, name="fanfold-leak").start()
            threading.Thread(target=end.wait, name="somebody-else").start()

        def test_and_clean_up():
            end.set()
        """
    )
    result = run(project)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*AssertionError: left behind by agent_session: thread fanfold-leak"])


def test_a_test_may_close_its_sessions_itself(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        def test_it(agent_session):
            with agent_session(["a"], session_id="s") as session:
                session.send("x")
            again = agent_session(["b"], session_id="s")
            assert len(again.history()) == 2
            assert again.send("y").text == "b"
            again.close()
        """
    )
    run(project).assert_outcomes(passed=1)


def test_a_session_that_crashed_is_resumed_by_the_next_one(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from fanfold.testing import CrashPoint, SimulatedCrashError

        def test_it(agent_session, scripted_model):
            point = CrashPoint(before_fact=2)
            dying = agent_session(["lost"], session_id="s", open_log=point.open_log)
            with pytest.raises(SimulatedCrashError):
                dying.send("hi")
            assert agent_session(["kept"], session_id="s").resume_run().text == "kept"
        """
    )
    run(project).assert_outcomes(passed=1)


def test_the_environment_is_the_same_in_each_run(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest

        seen = []

        @pytest.mark.parametrize("time", [1, 2])
        def test_it(sequential_env, time):
            env = sequential_env
            seen.append((env.ids.new_id(), env.ids.new_id(), env.clock.now_ms(), env.random.random()))
            assert seen[0][:3] == ("id-0", "id-1", 1_700_000_000_000)
            assert len(set(seen)) == 1

        def test_clock(manual_clock):
            import asyncio
            manual_clock.advance(2)
            asyncio.run(manual_clock.sleep(3600))
            assert manual_clock.now_ms() == 1_700_000_000_000 + 3_602_000
        """
    )
    run(project).assert_outcomes(passed=3)


# ---- cassettes ------------------------------------------------------------------------------------------------------

WEATHER = """
    def test_weather(agent_session, cassette):
        session = agent_session(cassette)
        assert session.send("weather in {city}?").text == "live: weather in Bergen?"
"""


def test_a_cassette_is_recorded_and_replayed(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=WEATHER.replace("{city}", "Bergen"))
    recorded = run(project, "--fanfold-record")
    recorded.assert_outcomes(passed=1)
    path = project.path / "cassettes" / "test_it" / "test_weather.json"
    assert json.loads(path.read_text())["recordings"][0]["reply"]["text"] == "live: weather in Bergen?"
    project.makeconftest("")
    run(project, "-W", "error").assert_outcomes(passed=1)


def test_a_miss_fails_the_test_and_shows_the_difference(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=WEATHER.replace("{city}", "Bergen"))
    run(project, "--fanfold-record").assert_outcomes(passed=1)
    project.makepyfile(test_it=WEATHER.replace("{city}", "Oslo"))
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_weather.json has no recording of this request (1 recorded, 1 not asked for yet).",
            "*The nearest one, * at line *, differs in",
            "*messages[[]0].text (user):*",
            "*-weather in Bergen?",
            "*+weather in Oslo?",
            "*To record: pytest --fanfold-record *test_it.py::test_weather*",
        ]
    )


def test_a_miss_that_the_code_under_test_swallows_fails_the_test_all_the_same(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest

        def test_it(agent_session, cassette):
            [outcome] = agent_session(cassette).parallel([{"task_id": "t", "agent": "answer", "prompt": "p"}])
            assert not outcome.success

        def test_other(agent_session, cassette):
            pass

        @pytest.mark.xfail(strict=True)
        def test_expected(agent_session, cassette):
            agent_session(cassette).send("x")
        """
    )
    result = run(project)
    result.assert_outcomes(failed=1, passed=1, xfailed=1)
    result.stdout.fnmatch_lines(["the cassette *test_it.json does not exist; asked was:", "*the newest (user):*p*"])


def test_a_test_that_failed_by_itself_is_told_with_its_own_failure(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        def test_it(cassette):
            try:
                cassette.misses.append(AssertionError("a miss"))
            finally:
                assert 1 == 2
        """
    )
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*assert 1 == 2"])


def test_each_test_has_a_cassette_of_its_own(project: pytest.Pytester) -> None:
    project.mkdir("sub")
    (project.path / "sub" / "test_deep.py").write_text(
        """
import pytest

@pytest.mark.parametrize("what", ["a/b", "a b", "ü", "x" * 300])
def test_many(cassette, what):
    print("at", cassette.path)

class TestClass:
    def test_in_it(self, cassette):
        print("at", cassette.path)
"""
    )
    result = run(project, "-s")
    result.assert_outcomes(passed=5)
    paths = [Path(line.partition("at ")[2]) for line in result.outlines if "at /" in line]
    assert {path.parent for path in paths} == {project.path / "sub" / "cassettes" / "test_deep"}
    assert len(set(paths)) == 5
    assert paths[-1].name == "TestClass.test_in_it.json"
    assert all(path.name.isascii() and len(path.name) < 130 for path in paths)
    assert paths[0].name.startswith("test_many_a_b-")


def test_missing_recordings_are_added_and_live_ones_are_not_kept(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it="""
        import os
        def test_it(agent_session, cassette):
            for number in range(int(os.environ["COUNT"])):
                assert agent_session(cassette).send(f"n {number}").text == f"live: n {number}"
        """
    )
    path = project.path / "cassettes" / "test_it" / "test_it.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNT", "1")
        run(project, "--fanfold-cassettes=live").assert_outcomes(passed=1)
        assert not path.exists()
        run(project, "--fanfold-cassettes=auto").assert_outcomes(passed=1)
        patch.setenv("COUNT", "3")
        run(project).assert_outcomes(failed=1)
        run(project, "--fanfold-cassettes=auto").assert_outcomes(passed=1)
        assert len(json.loads(path.read_text())["recordings"]) == 3
        project.makeconftest("")
        run(project).assert_outcomes(passed=1)


def test_recording_without_a_model_says_what_to_define(project: pytest.Pytester) -> None:
    project.makeconftest("")
    project.makepyfile("def test_it(cassette): pass")
    result = run(project, "--fanfold-record")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*define a fixture `cassette_model`*LiveModel*"])


def test_a_scrub_of_the_project_is_used(project: pytest.Pytester) -> None:
    project.makeconftest(
        CONFTEST
        + """
@pytest.fixture
def cassette_scrub(tmp_path):
    return lambda text: text.replace(str(tmp_path), "<tmp>")
"""
    )
    project.makepyfile(
        test_it="""
        def test_it(agent_session, cassette, tmp_path):
            assert agent_session(cassette).send(f"look at {tmp_path}").text in (
                f"live: look at {tmp_path}", "live: look at <tmp>")
        """
    )
    run(project, "--fanfold-record").assert_outcomes(passed=1)
    run(project).assert_outcomes(passed=1)


def test_a_corrupt_cassette_is_an_error_with_its_line(project: pytest.Pytester) -> None:
    (project.path / "cassettes" / "test_it").mkdir(parents=True)
    (project.path / "cassettes" / "test_it" / "test_it.json").write_text('{\n"recordings": [}')
    project.makepyfile(test_it="def test_it(cassette): pass")
    result = run(project)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_it.json' is corrupt at line 2: *"])


# ---- loading --------------------------------------------------------------------------------------------------------


def pytest_process(directory: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *args]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=25, check=False)


def test_loading_the_plugin_loads_nothing_of_what_its_fixtures_need() -> None:
    code = "import pytest, sys; before = set(sys.modules); import fanfold.testing.pytest_entry, "
    code += "fanfold.testing.pytest_plugin; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {
        "fanfold",
        "fanfold.release",
        "fanfold.testing",
        "fanfold.testing.pytest_entry",
        "fanfold.testing.pytest_plugin",
    }


USES_ALL = """
import sys

def test_nothing_is_loaded_before_it_is_needed():
    assert not {"msgspec", "fanfold.agent", "fanfold.testing.scripted"} & set(sys.modules)

def test_it(agent_session, cassette, manual_clock, sequential_env, scripted_model):
    assert agent_session(scripted_model(["x"])).send("y").text == "x"
"""
NAMED = 'pytest_plugins = ["fanfold.testing.pytest_plugin"]\n'


@pytest.mark.parametrize(
    ("args", "conftest"),
    [
        ((), ""),
        (("-p", "fanfold"), ""),
        (("-p", "fanfold.testing.pytest_plugin"), ""),
        (("-p", "fanfold.testing.pytest_plugin", "-p", "fanfold"), NAMED),
        ((), NAMED),
        (("-p", "no:fanfold"), NAMED),
    ],
    ids=["installed", "by its entry point", "by its module", "by all", "in a conftest", "in a conftest alone"],
)
def test_it_may_be_named_in_any_way_and_more_than_once(tmp_path: Path, args: tuple[str, ...], conftest: str) -> None:
    (tmp_path / "test_it.py").write_text(USES_ALL)
    (tmp_path / "conftest.py").write_text(conftest)
    done = pytest_process(tmp_path, *args)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_it_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(agent_session): pass")
    done = pytest_process(tmp_path, "-p", "no:fanfold")
    assert "fixture 'agent_session' not found" in done.stdout
