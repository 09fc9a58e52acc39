"""The sound under an app's calls: `audioProcessingConfig.ambientSoundConfig`, played by the sounds that are here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from callagent.agents.actions import SetBackground

LOUDNESS = -40.0
"""Decibels of full scale at a `volumeGainDb` of 0."""
_QUIETEST, _LOUDEST = -70.0, -20.0
_SOUNDS = {
    "coffee_shop": "restaurant-ambiance",
    "retail_store": "restaurant-ambiance",
    "convention_hall": "restaurant-ambiance",
    "keyboard": "typing",
    "keypad": "typing",
    "hum": "whitenoise-subtle",
    "air_conditioner": "whitenoise-subtle",
    "outdoor": "whitenoise-subtle",
    **{f"office_{number}": "office-ambiance" for number in range(1, 4)},
    **{f"room_{number}": "office-ambiance" for number in range(1, 6)},
}
"""The platform's prebuilt sounds -> the nearest of ours."""


def ambience(data: Mapping[str, Any]) -> SetBackground | None:
    """Of an app's main file; None: it has none. A file of its own is a sound of that name in the server's folder."""
    audio = data.get("audioProcessingConfig")
    config = audio.get("ambientSoundConfig") if isinstance(audio, Mapping) else None
    if not isinstance(config, Mapping):
        return None
    named = config.get("prebuiltAmbientSound") or config.get("prebuiltAmbientNoise") or ""
    own = PurePosixPath(str(config.get("gcsUri") or "")).stem
    name = _SOUNDS.get(str(named).lower(), "") or own
    if not name:
        return None
    gain = config.get("volumeGainDb")
    loudness = LOUDNESS + (float(gain) if isinstance(gain, int | float) and not isinstance(gain, bool) else 0.0)
    return SetBackground(name, min(_LOUDEST, max(_QUIETEST, loudness)))


def ambience_problem(data: Mapping[str, Any]) -> str:
    """Why nothing is heard although the app wants something; empty: nothing is wrong."""
    audio = data.get("audioProcessingConfig")
    wanted = audio.get("ambientSoundConfig") if isinstance(audio, Mapping) else None
    if not wanted or ambience(data) is not None:
        return ""
    return f"no ambient sound is played: 'prebuiltAmbientSound' is not one of {', '.join(_SOUNDS)}"
