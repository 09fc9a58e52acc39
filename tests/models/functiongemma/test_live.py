"""Real weights, where there are some: `CALLAGENT_TEST_FUNCTIONGEMMA=gguf:FILE`, or `llamacpp=http://127.0.0.1:8080`."""

from __future__ import annotations

import json
import os

import pytest

from callagent.models import ModelSettings
from callagent.models.functiongemma import EngineSettings, declaration_from_function, open_functiongemma

WHERE = os.environ.get("CALLAGENT_TEST_FUNCTIONGEMMA", "")


def get_current_temperature(location: str, unit: str = "celsius") -> float:
    """Gets the temperature at a location. Tells whether it is hot or cold there.

    Args:
        location: The city, e.g. Paris
        unit: The unit of the temperature. (choices: ["celsius", "fahrenheit"])
    """
    return 22.0


@pytest.mark.skipif(not WHERE, reason="CALLAGENT_TEST_FUNCTIONGEMMA names neither weights nor an endpoint")
async def test_weights_choose_the_function_and_its_argument() -> None:
    engine, _, base_url = WHERE.partition("=")
    settings = EngineSettings(base_url=base_url, first_token_timeout=60, total_timeout=120)
    model = open_functiongemma(engine, settings)
    messages = [{"role": "user", "content": "Hey, is it cold in Paris right now?"}]
    tools = [declaration_from_function(get_current_temperature)]
    deltas = [delta async for delta in model.stream(messages, tools, ModelSettings())]
    await model.close()
    [call] = [delta.tool_call for delta in deltas if delta.tool_call]
    assert call.name == "get_current_temperature"
    assert "Paris" in json.loads(call.arguments)["location"]
