"""Settings of an app's main file for its calls: silences, barge-in, errors, ambient sound, the folder of recordings.

Recordings (`loggingSettings.audioRecordingConfig`) go to a local folder, not to the bucket that the app names.
Placeholders of the path: `$project`, `$location`, `$app`, `$date`, `$session`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from callagent.agents.actions import SetBackground
from callagent.agents.cx.engine.telephony import as_bool
from callagent.agents.cx.format import CxApp, parse_duration
from callagent.call_info import CallInfo

DEFAULT_PREFIX = "$project/$location/$app/$date/$session/"
"""The platform's path where an app names a bucket only."""
LOCAL = "local"
"""Stands for the project and the location of an app that does not name them."""
_CONFIGS = ("audioRecordingConfig", "unredactedAudioRecordingConfig")
_PLACEHOLDER = re.compile(r"\$(project|location|app|date|session)\b|\$\{(project|location|app|date|session)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_RESOURCE = re.compile(r"projects/([^/]+)/locations/([^/]+)/apps/([^/]+)")
_MAX_FOLDERS, _MAX_NAME = 12, 100


def recording_folder(app: CxApp, info: CallInfo) -> str:
    """Return the folder of a call's recording below that of all recordings; empty: the app names none.

    Folder names have letters, digits, points, dashes and underscores only, and none leads upwards: variables of the
    path may come from the caller's side.
    """
    logging = app.data.get("loggingSettings")
    settings = logging if isinstance(logging, Mapping) else {}
    config = next((settings[key] for key in _CONFIGS if isinstance(settings.get(key), Mapping)), None)
    if not config:
        return ""
    prefix = str(config.get("gcsPathPrefix") or DEFAULT_PREFIX)
    values = _values(app, info)
    filled = _PLACEHOLDER.sub(lambda found: _safe(values[found[1] or found[2]]), prefix)
    folders = [_safe(each) for each in filled.split("/") if each.strip(". ")]
    return "/".join(folders[:_MAX_FOLDERS])


def _values(app: CxApp, info: CallInfo) -> Mapping[str, str]:
    found = _RESOURCE.search(str(app.data.get("name") or ""))
    return {
        "project": found[1] if found else LOCAL,
        "location": found[2] if found else LOCAL,
        "app": found[3] if found else app.name,
        "date": info.started.date().isoformat(),
        "session": info.call_id,
    }


def _safe(name: Any) -> str:
    """Return a text as the name of one folder."""
    return _UNSAFE.sub("_", str(name)).strip(".")[:_MAX_NAME] or "_"


DEFAULT_LOUDNESS = -40.0
"""dBFS of the ambient sound at a `volumeGainDb` of 0."""
_MIN_LOUDNESS, _MAX_LOUDNESS = -70.0, -20.0
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
"""The platform's prebuilt sounds -> the nearest of the sounds that come with callagent."""


def ambient_sound(data: Mapping[str, Any]) -> SetBackground | None:
    """Return the sound under an app's calls (`ambientSoundConfig`); None: the app has none.

    A file of the app's own (`gcsUri`) is played by its name from the server's folder of sounds: nothing is downloaded.
    """
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
    loudness = DEFAULT_LOUDNESS + (float(gain) if isinstance(gain, int | float) and not isinstance(gain, bool) else 0.0)
    return SetBackground(name, min(_MAX_LOUDNESS, max(_MIN_LOUDNESS, loudness)))


def ambient_sound_problem(data: Mapping[str, Any]) -> str:
    """Return why the app's ambient sound cannot be played; empty: it can be, or there is none."""
    audio = data.get("audioProcessingConfig")
    wanted = audio.get("ambientSoundConfig") if isinstance(audio, Mapping) else None
    if not wanted or ambient_sound(data) is not None:
        return ""
    return f"no ambient sound is played: set 'prebuiltAmbientSound' to one of {', '.join(_SOUNDS)}"


_DEFAULT_INACTIVITY_TIMEOUT = 10.0
"""Seconds, where the app names no `inactivityTimeout`."""


@dataclass(frozen=True, slots=True)
class CallSettings:
    """Settings of an app for all its calls."""

    inactivity_timeout: float
    """Seconds of the caller's silence after which the agent is told of it."""
    barge_in: bool | None
    """Whether the caller may interrupt; None: as the server's settings say."""
    takes_keys: bool
    """Whether key presses are taken where code or model ask for them (`disableDtmf`)."""
    fallback: str
    """What is said when a turn fails; empty: the server's own words."""
    max_fallbacks: int
    """Failed turns in a row that are covered by the fallback; one more ends the call. 0: no limit."""
    ends_on_error: bool
    """The first failed turn ends the session (`END_SESSION`)."""
    escalates_on_error: bool
    """The session is then escalated to a person instead of hanging up."""


def read_call_settings(app: CxApp) -> CallSettings:
    """Read the settings from the app's main file."""
    audio = app.data.get("audioProcessingConfig") or {}
    errors = app.data.get("errorHandlingSettings") or {}
    fallback = errors.get("fallbackResponseConfig") or {}
    messages: Mapping[str, Any] = fallback.get("customFallbackMessages") or {}
    strategy = str(errors.get("errorHandlingStrategy") or "")
    barge_in = audio.get("bargeInConfig") or {}
    channel = app.data.get("defaultChannelProfile") or {}
    uninterrupted = as_bool(barge_in.get("disableBargeIn")) or as_bool(channel.get("disableBargeInControl"))
    return CallSettings(
        inactivity_timeout=parse_duration(audio.get("inactivityTimeout")) or _DEFAULT_INACTIVITY_TIMEOUT,
        barge_in=False if uninterrupted else None,
        takes_keys=not as_bool(channel.get("disableDtmf")),
        fallback="" if strategy == "NONE" else str(messages.get(app.language) or next(iter(messages.values()), "")),
        max_fallbacks=int(fallback.get("maxFallbackAttempts") or 0) if strategy == "FALLBACK_RESPONSE" else 0,
        ends_on_error=strategy == "END_SESSION",
        escalates_on_error=as_bool((errors.get("endSessionConfig") or {}).get("escalateSession")),
    )
