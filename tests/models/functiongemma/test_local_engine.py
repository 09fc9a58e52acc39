"""The process beside the calls, with a stand-in for the package that runs weights: it echoes what it is told to."""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from callagent.errors import ProviderError, ProviderTimeout, UserError
from callagent.models import Delta, ModelSettings, open_model
from callagent.models.functiongemma import EngineSettings, FunctionGemmaModel, open_functiongemma

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


async def ask(model: FunctionGemmaModel, said: str, **settings: Any) -> list[Delta]:
    return [delta async for delta in model.stream(messages(said), [TOOL], ModelSettings(**settings))]


async def test_words_and_calls_come_from_the_process(model: FunctionGemmaModel) -> None:
    deltas = await ask(model, "Grüße(start_function_call)call:f{a:1}(end_function_call)(start_function_response)no")
    assert "".join(delta.text for delta in deltas) == "Grüße"
    assert [delta.tool_call.arguments for delta in deltas if delta.tool_call] == ['{"a": 1}']
    assert deltas[-1].usage is not None


async def test_requests_wait_for_one_another(model: FunctionGemmaModel) -> None:
    answers = await asyncio.gather(*(ask(model, f"number {n}") for n in range(4)))
    assert ["".join(delta.text for delta in each) for each in answers] == [f"number {n}" for n in range(4)]


async def test_answer_ends_at_its_limit(model: FunctionGemmaModel) -> None:
    assert "".join(delta.text for delta in await ask(model, "forever", max_tokens=10)) == "forever   "


async def test_closed_stream_leaves_a_process_that_answers(model: FunctionGemmaModel) -> None:
    stream = cast("Any", model.stream(messages("forever"), [TOOL], ModelSettings(max_tokens=100_000)))
    async with aclosing(stream) as deltas:
        await anext(deltas)
    process = cast("Any", model)._engine._process
    assert "".join(delta.text for delta in await ask(model, "back again")) == "back again"
    assert cast("Any", model)._engine._process is process


async def test_failure_in_the_process_is_the_providers_and_the_next_request_is_answered(
    model: FunctionGemmaModel,
) -> None:
    with pytest.raises(ProviderError, match="RuntimeError: out of memory"):
        await ask(model, "nothing")
    assert "".join(delta.text for delta in await ask(model, "back")) == "back"


async def test_process_that_dies_is_replaced(model: FunctionGemmaModel) -> None:
    with pytest.raises(ProviderError, match="has ended"):
        await ask(model, "last words")
    assert "".join(delta.text for delta in await ask(model, "reborn")) == "reborn"


async def test_answer_that_takes_too_long_is_a_timeout(tmp_path: Path, model: FunctionGemmaModel) -> None:
    await ask(model, "warm")
    slow = open_functiongemma(f"gguf:{tmp_path / 'weights.gguf'}", EngineSettings(total_timeout=0.5))
    with pytest.raises(ProviderTimeout):
        await ask(slow, "forever", max_tokens=100_000)
    await slow.close()


async def test_weights_that_cannot_be_loaded_are_an_error(tmp_path: Path, model: FunctionGemmaModel) -> None:
    broken = open_functiongemma(f"gguf:{tmp_path / 'broken.gguf'}", EngineSettings())
    with pytest.raises(ProviderError, match="has ended"):
        await ask(broken, "hello")
    await broken.close()


async def test_missing_package_and_missing_weights_are_named(model: FunctionGemmaModel) -> None:
    with pytest.raises(UserError, match="pip install transformers"):
        open_model("functiongemma/transformers:somewhere")
    with pytest.raises(UserError, match="no weights at"):
        open_model("functiongemma/gguf:nowhere.gguf")
