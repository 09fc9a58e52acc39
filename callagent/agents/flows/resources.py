"""What of a file is checked beyond its reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from callagent.agents.flows.mcp import check_mcp
from callagent.agents.kernel import Reader

PRESETS = ("office-ambiance", "restaurant-ambiance", "whitenoise-subtle")


def check_voice_extras(root: Reader) -> None:
    """Filler phrases and background sound of `voice/configuration.yaml`: here unknown keys are mistakes."""
    fillers, ambience = root.map("filler_phrases"), root.map("background_ambience")
    keys = ("enabled", "phrases", "randomize", "initial_interval_seconds", "interval_seconds")
    _known_keys(fillers, "filler_phrases", keys)
    if fillers.flag("enabled") and not fillers.texts("phrases"):
        fillers.error("'filler_phrases' is enabled and needs at least one phrase.", "enabled")
    for key, least in (("initial_interval_seconds", 0.5), ("interval_seconds", 1.0)):
        value = fillers.number(key)
        if value is not None and value < least:
            fillers.error(f"'{key}' should be at least {least:g}.", key)
    _known_keys(ambience, "background_ambience", ("enabled", "preset", "loudness"))
    loudness = ambience.number("loudness")
    if loudness is not None and not -70 <= loudness <= -20:
        ambience.error("'loudness' should be between -70 and -20.", "loudness")
    preset = ambience.text("preset")
    if preset and preset not in PRESETS:
        known = ", ".join(PRESETS)
        message = f"'preset' {preset} is none of the platform's: {known}. It needs a sound of that name on the server."
        ambience.warning(message, "preset")


CHECKS: Mapping[str, Callable[[Reader], None]] = {
    "config/mcp.yaml": check_mcp,
    "voice/configuration.yaml": check_voice_extras,
}


def _known_keys(reader: Reader, section: str, known: tuple[str, ...]) -> None:
    for key in reader.names():
        if key not in known:
            reader.error(f"'{section}' has no key '{key}'. It has: {', '.join(known)}.", key)
