from __future__ import annotations

import audioop
import wave
from pathlib import Path

import pytest

from callagent.audio import Sounds
from callagent.errors import ConfigError

PRESETS = ("office-ambiance", "restaurant-ambiance", "whitenoise-subtle", "typing", "ring")


@pytest.fixture(scope="module")
def sounds() -> Sounds:
    return Sounds()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_loop_of_whole_samples_that_is_heard_and_not_clipped(sounds: Sounds, name: str) -> None:
    pcm = sounds(name)
    assert pcm is not None
    assert len(pcm) % 320 == 0
    assert 2 * 8000 * 5 <= len(pcm) <= 2 * 8000 * 20
    assert audioop.rms(pcm, 2) > 100
    assert audioop.max(pcm, 2) < 32767


def test_a_name_is_known_in_any_case_and_an_unknown_one_is_none(sounds: Sounds) -> None:
    assert sounds("Ring") == sounds("ring")
    assert sounds("marching-band") is None


def test_the_folders_files_are_sounds_too_and_stand_before_ours(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "Ring.wav"), "wb") as file:
        file.setparams((2, 2, 16000, 0, "NONE", ""))
        file.writeframes(b"\x10\x20" * 2 * 16000)
    pcm = Sounds(tmp_path)("ring")
    assert pcm is not None
    assert abs(len(pcm) - 16000) <= 4
    assert set(pcm[:2]) == {0x10, 0x20}


def test_a_file_that_is_no_sound_is_named(tmp_path: Path) -> None:
    (tmp_path / "hum.wav").write_bytes(b"hum")
    with pytest.raises(ConfigError, match=r"hum\.wav"):
        Sounds(tmp_path)
