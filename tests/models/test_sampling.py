"""Settings of sampling go to each provider under its own names, and only those that it knows."""

from __future__ import annotations

from typing import Any

from callagent.models import ModelSettings, ProviderSettings, open_model

SAMPLING = {"top_p": 0.9, "top_k": 40, "stop": ["."], "seed": 7, "presence_penalty": 0.1, "frequency_penalty": 0.2}
SETTINGS = ModelSettings(sampling=SAMPLING)
MESSAGES = [{"role": "user", "content": "Hello"}]


def provider(name: str) -> Any:
    return open_model(name, ProviderSettings(base_url="http://127.0.0.1:1", api_key="key"))


async def test_openai() -> None:
    model = provider("openai/x")
    body = model._body(MESSAGES, [], SETTINGS)
    assert {key: body.get(key) for key in SAMPLING} == {**SAMPLING, "top_k": None}
    assert "seed" not in model._body(MESSAGES, [], ModelSettings())
    await model.close()


async def test_anthropic() -> None:
    model = provider("anthropic/x")
    body = model._body(MESSAGES, [], SETTINGS)
    assert (body["top_p"], body["top_k"], body["stop_sequences"]) == (0.9, 40, ["."])
    assert "seed" not in body
    await model.close()


async def test_gemini() -> None:
    model = provider("gemini/x")
    generation = model._generation_config("x", SETTINGS, with_tools=False)
    assert (generation["topP"], generation["topK"], generation["stopSequences"]) == (0.9, 40, ["."])
    assert (generation["seed"], generation["presencePenalty"], generation["frequencyPenalty"]) == (7, 0.1, 0.2)
    await model.close()
