from __future__ import annotations

from pathlib import Path

import pytest

from callagent.errors import ConfigError
from callagent.phone.handset import read_wav
from callagent.speech import open_turn_model
from callagent.speech.local import turn_model

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.local
FOLDER = Path(__file__).parents[2] / "data" / "speech"
SILENCE = bytes(3200)


# What the publisher's own code makes of these files with the same model.
REFERENCE = {"c01_hibari_heart": 0.8858, "c08_hibari_heart": 0.9901, "c10_flite_awb": 0.9308, "c14_hibari_heart": 0.986}


async def test_the_model_hears_what_it_hears_in_its_publishers_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a call an opinion that comes late is none. Here it may come when the machine has time.
    monkeypatch.setattr(turn_model, "ANSWER_SECONDS", 60.0)
    model = await open_turn_model("smart-turn")
    assert model is not None
    try:
        found = {name: await model.finished(read_wav(FOLDER / f"{name}.wav")) for name in REFERENCE}
    finally:
        await model.close()
    assert found == {name: pytest.approx(probability, abs=0.02) for name, probability in REFERENCE.items()}


async def test_a_closed_model_has_no_opinion() -> None:
    model = await open_turn_model("smart-turn")
    assert model is not None
    await model.close()
    assert await model.finished(SILENCE) is None


async def test_none_is_none_and_an_unknown_name_is_an_error() -> None:
    assert await open_turn_model("none") is None
    with pytest.raises(ConfigError, match="crystal-ball"):
        await open_turn_model("crystal-ball")
