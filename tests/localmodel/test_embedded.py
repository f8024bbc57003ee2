"""The embedded model for real, on one thread. What is asserted is the form of answers, never their truth."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fanfold.contracts.messages import ModelReply, ModelRequest, ToolSpec, UserMessage, append
from fanfold.contracts.settings import ModelSettings, ProviderSettings
from fanfold.errors import ConfigError, LifecycleError, ProviderError
from fanfold.providers.gguf import find_model
from fanfold.providers.local import LocalClient

pytestmark = [pytest.mark.localmodel, pytest.mark.timeout(300)]  # a busy machine decodes a few tokens a second

ENDLESS = {
    "type": "object",
    "properties": {"numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 5000}},
    "required": ["numbers"],
}
"""A schema whose shortest answer is longer than any limit."""


def asked(prompt: str, **settings: Any) -> ModelRequest:
    settings = {"system": "", "max_output_tokens": 24, **settings}
    return ModelRequest(model="default", transcript=append(None, UserMessage(prompt)), **settings)


def with_client(
    use: Callable[[LocalClient], Coroutine[Any, Any, None]],
    *,
    slots: int = 1,
    model: ModelSettings | None = None,
    model_id: str = "default",
) -> None:
    async def main() -> None:
        provider = ProviderSettings(name="local", kind="local", slots=slots, threads=1)
        client = LocalClient(provider, model or ModelSettings(id=model_id, context_tokens=512), model_id)
        try:
            await use(client)
        finally:
            await client.close()

    asyncio.run(main())


class Heard:
    """A DeltaSink that keeps what it hears, and tells when it has heard `enough` pieces."""

    def __init__(self, enough: int = 1) -> None:
        self.pieces: list[str] = []
        self.has_enough = asyncio.Event()
        self._enough = enough

    def text(self, piece: str) -> None:
        self.pieces.append(piece)
        if len(self.pieces) >= self._enough:
            self.has_enough.set()

    def reasoning(self, piece: str) -> None:
        raise AssertionError("this model does not reason")

    def restart(self) -> None:
        raise AssertionError("a local call is never repeated")


def test_it_answers_with_text_and_counts_its_tokens() -> None:
    async def use(client: LocalClient) -> None:
        reply = await client.generate(asked("Say hello."))
        assert reply.text.strip()
        assert reply.usage is not None
        assert 0 < reply.usage.completion_tokens <= 24
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
        assert not reply.usage.is_estimated

    with_client(use)


def test_the_pieces_heard_are_the_text_of_the_reply() -> None:
    async def use(client: LocalClient) -> None:
        heard = Heard()
        reply = await client.generate(asked("Count to ten."), heard)
        assert "".join(heard.pieces) == reply.text
        assert len(heard.pieces) > 1

    with_client(use)


def test_the_same_prompt_gives_the_same_text() -> None:
    async def use(client: LocalClient) -> None:
        prompt = asked("Name three colours.")
        first, second = await client.generate(prompt), await client.generate(prompt)
        assert first.text == second.text

    with_client(use)


def test_a_schema_forces_the_form_and_keywords_unknown_to_the_grammar_do_not_lift_it() -> None:
    schema = {
        "type": "object",
        "properties": {"is_animal": {"type": "boolean"}, "kind": {"enum": ["cat", "dog"]}},
        "required": ["is_animal", "kind"],
        "dependentRequired": {"kind": ["is_animal"]},
    }

    async def use(client: LocalClient) -> None:
        reply = await client.generate(asked("Is Rex, who barks, an animal?", output_schema=schema))
        value = json.loads(reply.text)
        assert type(value["is_animal"]) is bool
        assert value["kind"] in ("cat", "dog")

    with_client(use)


def test_an_object_that_only_lists_properties_gets_no_others() -> None:
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}

    async def use(client: LocalClient) -> None:
        reply = await client.generate(asked("Describe the sea.", output_schema=schema))
        assert json.loads(reply.text).keys() == {"yes"}

    with_client(use)


def test_what_the_limit_cuts_off_is_called_cut_off() -> None:
    async def use(client: LocalClient) -> None:
        reply = await client.generate(asked("Count.", output_schema=ENDLESS))
        assert reply.stop_reason == "length"
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 24

    with_client(use)


def test_more_requests_than_slots_are_all_answered_while_the_loop_stays_free() -> None:
    async def use(client: LocalClient) -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        await client.generate(asked("Load."))  # loading holds the interpreter; what comes after must not
        ticker = asyncio.create_task(tick())
        replies = await asyncio.gather(*(client.generate(asked(f"What is {word}?")) for word in "abcde"))
        ticker.cancel()
        assert all(reply.text.strip() for reply in replies)
        assert ticks > 4 * len(replies)

    with_client(use, slots=2, model=ModelSettings(id="default", context_tokens=256))


def test_cancelling_stops_the_model_and_frees_its_slot() -> None:
    most = 440

    async def use(client: LocalClient) -> None:
        heard = Heard(enough=20)
        start = time.monotonic()
        task = asyncio.create_task(
            client.generate(asked("Count.", output_schema=ENDLESS, max_output_tokens=most), heard)
        )
        await heard.has_enough.wait()
        whole_would_take = (time.monotonic() - start) * most / 20
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        count = len(heard.pieces)
        start = time.monotonic()
        await client.generate(asked("Say hello.", max_output_tokens=4))
        assert time.monotonic() - start < whole_would_take / 2
        assert len(heard.pieces) == count

    with_client(use)


def test_a_prompt_that_does_not_fit_names_its_tokens_and_the_limit() -> None:
    async def use(client: LocalClient) -> None:
        with pytest.raises(
            ProviderError, match=r"the prompt has 6\d\d tokens, the model's context holds 512"
        ) as failure:
            await client.generate(asked("word " * 600))
        assert (failure.value.kind, failure.value.retryable) == ("bad_request", False)
        assert (await client.generate(asked("Say hello."))).text

    with_client(use)


def test_a_client_can_be_opened_again_after_the_model_was_freed() -> None:
    texts: list[str] = []

    async def use(client: LocalClient) -> None:
        texts.append((await client.generate(asked("Say hello."))).text)
        await client.close()
        with pytest.raises(LifecycleError, match="local/default is closed"):
            await client.generate(asked("Say hello."))

    with_client(use)
    with_client(use)
    assert texts[0] == texts[1]


def test_one_client_serves_several_loops() -> None:
    client = LocalClient(ProviderSettings(name="local", kind="local", slots=2, threads=1), None, "default")

    async def ask() -> ModelReply:
        return await client.generate(asked("Say hello."))

    first, second = asyncio.run(ask()), asyncio.run(ask())
    asyncio.run(client.close())
    assert first.text == second.text


def test_the_default_has_no_tools_and_a_file_of_ones_own_has_them() -> None:
    async def default(client: LocalClient) -> None:
        assert not client.capabilities.tools
        assert client.capabilities.structured == "json_schema"
        assert client.capabilities.context_tokens == 512

    async def own(client: LocalClient) -> None:
        assert client.capabilities.tools
        tool = ToolSpec(name="look", description="Looks at a path.", parameters={"type": "object", "properties": {}})
        reply = await client.generate(asked("Look around.", tools=(tool,), output_schema=ENDLESS))
        assert reply.text or reply.calls

    with_client(default)
    with_client(own, model_id=str(find_model("default").path))


def test_a_file_that_llama_cpp_cannot_read_is_named(tmp_path: Any) -> None:
    path = tmp_path / "cut.gguf"
    with find_model("default").path.open("rb") as whole:
        path.write_bytes(whole.read(100_000))

    async def use(client: LocalClient) -> None:
        with pytest.raises(ConfigError, match=r"llama\.cpp cannot load .*cut\.gguf"):
            await client.generate(asked("Say hello."))

    with_client(use, model_id=str(path))
