"""The sound under a call: `background_ambience` of the voice, the older `background_track`, or a function's wish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callagent.agents.actions import SetBackground
from callagent.agents.flows.experimental import Experimental
from callagent.agents.kernel import Reader

PRESET_LOUDNESS, TRACK_LOUDNESS = -50.0, -40.0
QUIETEST, LOUDEST = -70.0, -20.0


def background(track: Mapping[str, Any]) -> SetBackground:
    """From `{"name", "loudness"}`."""
    loudness = track.get("loudness")
    is_number = isinstance(loudness, int | float) and not isinstance(loudness, bool)
    wanted = float(loudness) if is_number and loudness is not None else TRACK_LOUDNESS
    return SetBackground(str(track.get("name") or ""), min(LOUDEST, max(QUIETEST, wanted)))


def load_background(root: Reader) -> SetBackground | None:
    """Of `voice/configuration.yaml`; None: there is none."""
    section = root.map("background_ambience")
    if not section.flag("enabled") or not section.text("preset"):
        return None
    return background({"name": section.text("preset"), "loudness": section.number("loudness", PRESET_LOUDNESS)})


def opening_background(configured: SetBackground | None, experimental: Experimental) -> SetBackground | None:
    """What a call begins with."""
    track = experimental.section("background_track")
    return configured or (background(track) if track.get("name") else None)
