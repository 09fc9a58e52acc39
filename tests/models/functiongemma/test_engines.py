"""Each server is spoken to in its own dialect, over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import textwrap
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout, UserError
from callagent.models import Delta, ModelSettings, ProviderSettings, ToolCall, Usage, open_model
from callagent.models.functiongemma import EngineSettings, FunctionGemmaModel, open_functiongemma
from tests.models.functiongemma.server import CUT, HANG, CompletionServer

DIALECTS = ["llamacpp", "ollama", "vllm"]
MESSAGES = [{"role": "system", "content": "Route."}, {"role": "user", "content": "Tea for five minutes <eos>"}]
TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Sets a timer",
        "parameters": {
            "type": "object",
            "properties": {"minutes": {"type": "integer", "description": "How long"}},
            "required": ["minutes"],
        },
    },
}
START, END = "<start_function_call>", "<end_function_call>"


def timer(minutes: object) -> str:
    return f"{START}call:set_timer{{minutes:{minutes}}}{END}"


@asynccontextmanager
async def served(
    dialect: str, *answers: list[str] | str | web.Response, **settings: Any
) -> AsyncIterator[tuple[CompletionServer, FunctionGemmaModel]]:
    async with CompletionServer(dialect, *answers).running() as server:
        model = open_functiongemma(dialect, EngineSettings(base_url=server.url, **settings))
        try:
            yield server, model
        finally:
            await model.close()


async def ask(model: FunctionGemmaModel, **settings: Any) -> list[Delta]:
    return [delta async for delta in model.stream(MESSAGES, [TIMER], ModelSettings(**settings))]


def calls(deltas: list[Delta]) -> list[tuple[str, Any]]:
    return [(each.tool_call.name, json.loads(each.tool_call.arguments)) for each in deltas if each.tool_call]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_words_calls_and_usage_are_read(dialect: str) -> None:
    text = f"One moment.{timer(5)}{timer(7)}"
    async with served(dialect, list(text)) as (_, model):
        deltas = await ask(model)
    assert "".join(delta.text for delta in deltas) == "One moment."
    assert [delta.tool_call for delta in deltas if delta.tool_call] == [
        ToolCall("call_1", "set_timer", '{"minutes": 5}'),
        ToolCall("call_2", "set_timer", '{"minutes": 7}'),
    ]
    assert deltas[-1].usage == Usage(7, 3)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_server_gets_our_prompt_and_leaves_the_control_tokens_in(dialect: str) -> None:
    async with served(dialect, "Yes.") as (server, model):
        await ask(model, max_tokens=9, temperature=0.5)
    [body] = server.requests
    turns = (
        "Tea for five minutes eos<end_of_turn>\n<start_of_turn>model\n",
        "<end_function_declaration><end_of_turn>\n<start_of_turn>user\n",
    )
    assert all(turn in body["prompt"] for turn in turns)
    options = body.get("options", body)
    assert options["stop"] == ["<end_of_turn>", "<eos>", "<start_function_response>"]
    # A request's temperature is meant for models that talk.
    assert options["temperature"] == 0.0
    assert body["stream"] is True
    match dialect:
        case "llamacpp":
            assert body["prompt"].startswith("<start_of_turn>developer\nRoute.")
            assert body["n_predict"] == 9
            assert START in body["preserved_tokens"]
            assert "grammar" not in body
        case "ollama":
            assert body["prompt"].startswith("<start_of_turn>developer\nRoute.")
            assert (body["raw"], body["model"], options["num_predict"]) == (True, "functiongemma", 9)
        case _:
            assert body["prompt"].startswith("<bos><start_of_turn>developer\nRoute.")
            assert (body["skip_special_tokens"], body["add_special_tokens"], body["max_tokens"]) == (False, False, 9)
            assert body["model"] == "google/functiongemma-270m-it"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_closing_the_stream_closes_the_connection(dialect: str) -> None:
    async with served(dialect, ["One ", "moment", HANG]) as (server, model):
        async with aclosing(cast("Any", model.stream(MESSAGES, [TIMER], ModelSettings()))) as deltas:
            assert (await anext(deltas)).text == "One "
        async with asyncio.timeout(60):
            await server.client_left.wait()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_cancelled_task_closes_the_connection(dialect: str) -> None:
    async with served(dialect, ["One ", HANG]) as (server, model):
        asking = asyncio.create_task(ask(model))
        while not server.requests:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(60):
            await server.client_left.wait()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_calls_run_beside_one_another(dialect: str) -> None:
    async with served(dialect, *([timer(5)] * 8)) as (_, model):
        answers = await asyncio.gather(*(ask(model) for _ in range(8)))
    assert [calls(answer) for answer in answers] == [[("set_timer", {"minutes": 5})]] * 8


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_answer_that_is_cut_is_an_error(dialect: str) -> None:
    async with served(dialect, ["One ", CUT]) as (_, model):
        with pytest.raises(ProviderError, match=r"cut|before it was whole"):
            await ask(model)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_silent_server_is_a_timeout(dialect: str) -> None:
    async with served(dialect, [HANG], first_token_timeout=0.2) as (_, model):
        with pytest.raises(ProviderTimeout, match="begin to answer"):
            await ask(model)
    async with served(dialect, ["One ", HANG], total_timeout=2.0) as (_, model):
        with pytest.raises(ProviderTimeout, match="finish its answer"):
            await ask(model)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("status", "error"), [(404, ProviderRefused), (429, ProviderRefused), (500, ProviderError), (504, ProviderTimeout)]
)
@pytest.mark.parametrize("body", ['{"error": {"message": "no such model"}}', '{"error": "no such model"}', "<html>"])
async def test_error_status_is_an_error(dialect: str, status: int, error: type[ProviderError], body: str) -> None:
    async with served(dialect, web.Response(status=status, text=body)) as (_, model):
        with pytest.raises(error, match=str(status)) as raised:
            await ask(model)
    assert ("no such model" in str(raised.value)) == ("error" in body)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "line",
    ["nonsense", "[1]", "{}", '{"error": {"message": "out of memory"}}', '{"error": "no"}', "9" * 70_000, "\xff"],
)
async def test_garbage_is_an_error(dialect: str, line: str) -> None:
    prefix = "" if dialect == "ollama" else "data: "
    response = web.Response(body=f"{prefix}{line}\n\n".encode("latin-1"))
    async with served(dialect, response) as (_, model):
        with pytest.raises(ProviderError):
            await ask(model)


async def test_server_that_is_not_there_is_an_error() -> None:
    model = open_functiongemma("llamacpp", EngineSettings(base_url="http://127.0.0.1:1"))
    with pytest.raises(ProviderError, match="cannot be reached"):
        await ask(model)
    await model.close()


async def test_key_goes_with_the_request_and_a_name_overrides_the_model() -> None:
    async with CompletionServer("vllm", "Yes.").running() as server:
        settings = ProviderSettings(base_url=f"{server.url}/v1", api_key="secret")
        model = open_model("functiongemma/vllm:tuned", settings)
        async for _ in model.stream(MESSAGES, [TIMER], ModelSettings()):
            pass
        await model.close()
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert server.requests[0]["model"] == "tuned"


def test_without_a_server_of_its_own_nothing_goes_to_openai() -> None:
    model: Any = open_model("functiongemma/llamacpp", ProviderSettings(api_key="secret"))
    engine = model._engine
    assert engine._url == "http://127.0.0.1:8080/completion"
    assert engine._settings.api_key == ""


@pytest.mark.parametrize("name", ["functiongemma/other", "functiongemma/gguf", "functiongemma/gguf:", "functiongemma/"])
def test_unknown_engine_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="llamacpp"):
        open_model(name) if name != "functiongemma/" else open_functiongemma("", EngineSettings())


STAND_IN = '''
    """As much of llama-cpp-python as is used: one token per byte; the answer is what stands behind "Say: "."""
    import sys, time

    print("noise on standard output")

    class LlamaGrammar:
        @classmethod
        def from_string(cls, text, verbose=True):
            assert "root ::=" in text
            return cls()

    class Llama:
        def __init__(self, model_path, n_ctx, verbose):
            if "broken" in model_path:
                raise ValueError("no weights")

        def tokenize(self, text, add_bos=True, special=False):
            assert special and not text.startswith(b"<bos>")
            return list(text)

        def detokenize(self, tokens, prev_tokens=None, special=False):
            assert special
            return bytes(tokens)

        def token_eos(self):
            return 0

        def generate(self, tokens, temp, grammar=None):
            answer = bytes(tokens).partition(b"Say: ")[2].partition(b"|")[0]
            if answer == b"nothing":
                raise RuntimeError("out of memory")
            if answer == b"last words":
                sys.exit(1)
            # Control tokens in what is said are neutralised; the test writes them with other brackets.
            for byte in answer.replace(b"(", b"<").replace(b")", b">"):
                yield byte
            while answer == b"forever":
                time.sleep(0.01)
                yield 32
            yield 0
'''
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}


@pytest.fixture
async def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FunctionGemmaModel]:
    (tmp_path / "llama_cpp.py").write_text(textwrap.dedent(STAND_IN))
    (tmp_path / "weights.gguf").touch()
    (tmp_path / "broken.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.getcwd()]))
    opened = open_functiongemma(f"gguf:{tmp_path / 'weights.gguf'}", EngineSettings(first_token_timeout=20))
    yield opened
    await opened.close()


def messages(said: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"Say: {said}|"}]


async def ask_it(model: FunctionGemmaModel, said: str, **settings: Any) -> list[Delta]:
    return [delta async for delta in model.stream(messages(said), [TOOL], ModelSettings(**settings))]


async def test_words_and_calls_come_from_the_process(model: FunctionGemmaModel) -> None:
    deltas = await ask_it(model, "Grüße(start_function_call)call:f{a:1}(end_function_call)(start_function_response)no")
    assert "".join(delta.text for delta in deltas) == "Grüße"
    assert [delta.tool_call.arguments for delta in deltas if delta.tool_call] == ['{"a": 1}']
    assert deltas[-1].usage is not None


async def test_requests_wait_for_one_another(model: FunctionGemmaModel) -> None:
    answers = await asyncio.gather(*(ask_it(model, f"number {n}") for n in range(4)))
    assert ["".join(delta.text for delta in each) for each in answers] == [f"number {n}" for n in range(4)]


async def test_answer_ends_at_its_limit(model: FunctionGemmaModel) -> None:
    assert "".join(delta.text for delta in await ask_it(model, "forever", max_tokens=10)) == "forever   "


async def test_closed_stream_leaves_a_process_that_answers(model: FunctionGemmaModel) -> None:
    stream = cast("Any", model.stream(messages("forever"), [TOOL], ModelSettings(max_tokens=100_000)))
    async with aclosing(stream) as deltas:
        await anext(deltas)
    process = cast("Any", model)._engine._process
    assert "".join(delta.text for delta in await ask_it(model, "back again")) == "back again"
    assert cast("Any", model)._engine._process is process


async def test_failure_in_the_process_is_the_providers_and_the_next_request_is_answered(
    model: FunctionGemmaModel,
) -> None:
    with pytest.raises(ProviderError, match="RuntimeError: out of memory"):
        await ask_it(model, "nothing")
    assert "".join(delta.text for delta in await ask_it(model, "back")) == "back"


async def test_process_that_dies_is_replaced(model: FunctionGemmaModel) -> None:
    with pytest.raises(ProviderError, match="has ended"):
        await ask_it(model, "last words")
    assert "".join(delta.text for delta in await ask_it(model, "reborn")) == "reborn"


async def test_answer_that_takes_too_long_is_a_timeout(tmp_path: Path, model: FunctionGemmaModel) -> None:
    await ask_it(model, "warm")
    slow = open_functiongemma(f"gguf:{tmp_path / 'weights.gguf'}", EngineSettings(total_timeout=0.5))
    with pytest.raises(ProviderTimeout):
        await ask_it(slow, "forever", max_tokens=100_000)
    await slow.close()


async def test_weights_that_cannot_be_loaded_are_an_error(tmp_path: Path, model: FunctionGemmaModel) -> None:
    broken = open_functiongemma(f"gguf:{tmp_path / 'broken.gguf'}", EngineSettings())
    with pytest.raises(ProviderError, match="has ended"):
        await ask_it(broken, "hello")
    await broken.close()


async def test_missing_package_and_missing_weights_are_named(model: FunctionGemmaModel) -> None:
    with pytest.raises(UserError, match="pip install transformers"):
        open_model("functiongemma/transformers:somewhere")
    with pytest.raises(UserError, match="no weights at"):
        open_model("functiongemma/gguf:nowhere.gguf")
