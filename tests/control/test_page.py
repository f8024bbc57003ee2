"""The programs of docs/control.md run as they stand: one waits, the other answers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fanfold.control import place
from tests.cli.conftest import ServerThread, configure
from tests.support.chat_server import Call, Say

PAGE = Path(__file__).parents[2] / "docs" / "control.md"
WRITE = Call("write", '{"file_path": "made", "content": "x"}')


def test_one_program_waits_and_the_other_answers(tmp_path: Path) -> None:
    if not place.HAS_UNIX_SOCKETS:
        pytest.skip("no process can be reached from another one here")
    waits, answers = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    server = ServerThread([Say(calls=(WRITE,)), Say("Tidied.")])
    configure(tmp_path, server)
    host = subprocess.Popen([sys.executable, "-c", waits], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        said = ""
        while not said and host.poll() is None:
            said = subprocess.run(
                [sys.executable, "-c", answers], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=True
            ).stdout
        assert said == "nightly/call_1 True\n"
        assert host.communicate(timeout=20)[0] == "Tidied.\n"
    finally:
        host.kill()
        host.communicate()
        server.close()
