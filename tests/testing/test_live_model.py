"""A configured model is found when it is first asked, and what a cassette keeps of it holds nothing of the wire."""

import asyncio
from pathlib import Path

import pytest

from fanfold.errors import ConfigError
from fanfold.testing import Cassette, LiveModel
from tests.support.chat_server import ChatServer, Say
from tests.testing.model_calls import Listener, ask, request, texts

ACL = """
default_model = "here/fake"
providers "here" {
  base_url = "%s"
  api_key = "sk-secret"
  headers = { "X-Team" = "team-secret" }
}
"""


def test_a_model_behind_http_is_recorded_without_its_key(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    live, replayed = Listener(), Listener()

    async def record() -> None:
        async with ChatServer([Say("Hello there"), Say("again"), Say("after a close")]) as server:
            cassette = Cassette(path, "record", inner=LiveModel("here/fake", ACL % server.base_url))
            await cassette.generate(request("hello"), live)
            await cassette.generate(request("again"))
            await cassette.close()
            await cassette.generate(request("once more"))
            await cassette.close()
            assert server.requests[0].json["model"] == "fake"  # and not "m", as which the cassette was asked
            assert "sk-secret" in str(server.requests[0].headers)
            assert "team-secret" in str(server.requests[0].headers)

    asyncio.run(record())
    content = path.read_text()
    assert "secret" not in content
    assert "127.0.0.1" not in content

    cassette = Cassette(path, inner=LiveModel("here/fake", "providers nowhere"))
    asyncio.run(cassette.generate(request("hello"), replayed))
    assert replayed.heard == live.heard != []
    assert texts(ask(cassette, request("again"), request("once more"))) == ["again", "after a close"]


def test_a_model_that_is_not_configured_is_told_when_it_is_asked(tmp_path: Path) -> None:
    model = LiveModel("nobody/model", ACL % "http://127.0.0.1:1")
    cassette = Cassette(tmp_path / "c.json", "record", inner=model)
    with pytest.raises(ConfigError, match="nobody"):
        ask(cassette, request("x"))
    assert list(tmp_path.glob("*.json*")) == []
