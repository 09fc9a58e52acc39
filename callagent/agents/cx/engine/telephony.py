"""The platform's telephony in terms of callagent: `end_session`, transfers, SIP headers, settings of an app's calls.

Variables or parameters of the session ask for a transfer: `PHONE_GATEWAY_TRANSFER` (a number), `LIVE_AGENT_HANDOFF`
(headers, REFER or INVITE, a partner's address) and `ESCALATION_MESSAGE` (the last words).

The app's main file sets silences, barge-in, error handling, ambient sound and the folder of recordings. Recordings
(`loggingSettings.audioRecordingConfig`) go to a local folder, not to the bucket that the app names. Placeholders of
the path: `$project`, `$location`, `$app`, `$date`, `$session`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from callagent.agents.actions import Handoff, HangUp, SetBackground
from callagent.agents.cx.format import CxApp, parse_duration
from callagent.call_info import CallInfo
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, number_at, object_at

LIVE_AGENT = "live_agent"
"""The destination of an escalation without a number: our BYE, with its headers, gives the call back to the peer."""
_UUI_PARAMETERS = ";encoding=hex;purpose=Goog-Session-Param"


def read_session_end(arguments: Mapping[str, object], variables: Mapping[str, object]) -> tuple[str, HangUp | Handoff]:
    """Return the last words and how the call ends: hanging up or a transfer.

    `arguments`: those of `end_session`. Its `params` win over session variables of the same names, which count only
    where the session is escalated.
    """
    params = as_map(arguments.get("params"))
    escalated = as_bool(arguments.get("session_escalated"))

    def session_parameter(key: str) -> object:
        # Apps may set these variables long before an escalation; a session that ends without one must not transfer.
        return params.get(key) if key in params else variables.get(key) if escalated else None

    gateway = as_map(session_parameter("PHONE_GATEWAY_TRANSFER"))
    handoff = as_map(session_parameter("LIVE_AGENT_HANDOFF"))
    message = str(session_parameter("ESCALATION_MESSAGE") or "")
    reason = str(arguments.get("reason") or "")
    headers = transfer_headers(handoff)
    partner = as_map(handoff.get("PARTNER"))
    number = str(gateway.get("phone_number") or gateway.get("phoneNumber") or partner.get("sip_uri") or "")
    refer = as_bool(_first_value(handoff, "sip-refer", "sipRefer")) or as_bool(partner.get("sip_refer"))
    # Where calls may go, and which headers may be sent there, is decided in `server/outbound.py`, not by the app.
    if number:
        headers |= {str(name): str(value) for name, value in as_map(partner.get("sip_parameters")).items()}
        return message, Handoff(number, reason or number, "refer" if refer else "invite", number, headers)
    if escalated or handoff:
        return message, Handoff(LIVE_AGENT, reason or LIVE_AGENT, "bye", None, headers)
    return message, HangUp()


def transfer_headers(handoff: Mapping[str, object]) -> dict[str, str]:
    """Return the SIP headers of a transfer: `x-headers` as they are, `uui-headers` as one User-to-User (RFC 7433)."""
    x_headers = as_map(_first_value(handoff, "x-headers", "xHeaders"))
    headers = {str(name): str(value) for name, value in x_headers.items()}
    pairs = list(_pairs(_first_value(handoff, "uui-headers", "uuiHeaders")))
    if pairs:
        # One header holds all pairs. Hexadecimal (RFC 7433 §4.1) keeps their text within the header's grammar.
        text = ";".join(f"{key}={value}" for key, value in pairs)
        headers["User-to-User"] = text.encode().hex() + _UUI_PARAMETERS
    return headers


def read_uui(value: str) -> list[dict[str, str]]:
    """Return the pairs of a User-to-User header for `uui-headers`; empty if it has another form than we send."""
    # After the semicolon come parameters: the encoding and the purpose.
    data = value.partition(";")[0].strip()
    try:
        text = bytes.fromhex(data).decode("utf-8")
    except ValueError:
        return []
    return [{key: item} for pair in text.split(";") for key, found, item in (pair.partition("="),) if found]


def telephony_variables(info: CallInfo) -> dict[str, object]:
    """Return the session variables that the platform fills in from the telephone call."""
    x_headers = {name: value for name, value in info.headers.items() if name.lower().startswith("x-")}
    uui = next((value for name, value in info.headers.items() if name.lower() == "user-to-user"), "")
    return {"telephony-caller-id": info.caller or "", "x-headers": x_headers, "uui-headers": read_uui(uui)}


def as_map(value: object) -> MutableJsonObject:
    """Return a value as an object, which may also be JSON text; for anything else return an empty one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return dict(value) if isinstance(value, Mapping) else {}


def as_bool(value: object) -> bool:
    """Return a value as a truth value; of texts, only `true` counts as true."""
    return value.strip().lower() == "true" if isinstance(value, str) else bool(value)


def _first_value(data: Mapping[str, object], *keys: str) -> object:
    """Return the value of the first key that exists: apps spell a key as in Python or as in JSON."""
    return next((data[key] for key in keys if key in data), None)


def _pairs(value: object) -> list[tuple[str, str]]:
    """Return the pairs of one map, or of a list of `{"key", "value"}` or `{name: value}`."""
    rows = [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    pairs: list[tuple[str, str]] = []
    for row in rows:
        if not isinstance(row, Mapping):
            continue
        # Two headers called `key` and `value` in one object cannot be told from this form.
        if row.keys() == {"key", "value"}:
            pairs.append((str(row["key"]), str(row["value"])))
        else:
            pairs += [(str(key), str(item)) for key, item in row.items()]
    return pairs


DEFAULT_PREFIX = "$project/$location/$app/$date/$session/"
"""The platform's path for an app that names only a bucket."""
LOCAL = "local"
"""The project and the location of an app that names none."""
_RECORDING_CONFIGS = ("audioRecordingConfig", "unredactedAudioRecordingConfig")
_PLACEHOLDER = re.compile(r"\$(project|location|app|date|session)\b|\$\{(project|location|app|date|session)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_RESOURCE_NAME = re.compile(r"projects/([^/]+)/locations/([^/]+)/apps/([^/]+)")
_MAX_FOLDERS, _MAX_NAME = 12, 100
"""Folders of a path, and characters of a folder's name; longer ones are cut."""


def recording_folder(app: CxApp, info: CallInfo) -> str:
    """Return the folder of a call's recording below that of all recordings; empty if the app names none.

    Folder names have only letters, digits, points, dashes and underscores, and none leads upwards, because values of
    placeholders may come from the caller's side.
    """
    settings = object_at(app.data, "loggingSettings")
    config = next(
        (object_at(settings, key) for key in _RECORDING_CONFIGS if isinstance(settings.get(key), Mapping)), None
    )
    if not config:
        return ""
    prefix = str(config.get("gcsPathPrefix") or DEFAULT_PREFIX)
    values = _placeholder_values(app, info)
    # Values are made safe before they are inserted, so that none adds a slash; then the path as a whole is.
    filled = _PLACEHOLDER.sub(lambda found: _folder_name(values[found[1] or found[2]]), prefix)
    folders = [_folder_name(each) for each in filled.split("/") if each.strip(". ")]
    return "/".join(folders[:_MAX_FOLDERS])


def _placeholder_values(app: CxApp, info: CallInfo) -> Mapping[str, str]:
    found = _RESOURCE_NAME.search(str(app.data.get("name") or ""))
    return {
        "project": found[1] if found else LOCAL,
        "location": found[2] if found else LOCAL,
        "app": found[3] if found else app.name,
        "date": info.started.date().isoformat(),
        "session": info.call_id,
    }


def _folder_name(name: str) -> str:
    """Return a text as the name of one folder."""
    return _UNSAFE.sub("_", name).strip(".")[:_MAX_NAME] or "_"


DEFAULT_LOUDNESS = -40.0
"""dBFS of the ambient sound at a `volumeGainDb` of 0."""
_MIN_LOUDNESS, _MAX_LOUDNESS = -70.0, -20.0
"""Bounds in dBFS, which keep the sound audible, and below speech."""
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
"""The platform's prebuilt sounds -> the most similar of the sounds that come with callagent."""


def ambient_sound(data: JsonObject) -> SetBackground | None:
    """Return the background sound of an app's calls (`ambientSoundConfig`); None if the app has none.

    For a file of the app's own (`gcsUri`), the file of that name in the server's folder of sounds is played.
    """
    config = object_at(data, "audioProcessingConfig", "ambientSoundConfig")
    named = config.get("prebuiltAmbientSound") or config.get("prebuiltAmbientNoise") or ""
    own = PurePosixPath(str(config.get("gcsUri") or "")).stem
    name = _SOUNDS.get(str(named).lower(), "") or own
    if not name:
        return None
    loudness = DEFAULT_LOUDNESS + number_at(config, "volumeGainDb")
    # The gain is relative to the platform's own level.
    return SetBackground(name, min(_MAX_LOUDNESS, max(_MIN_LOUDNESS, loudness)))


def ambient_sound_problem(data: JsonObject) -> str:
    """Return why the app's ambient sound cannot be played; empty if it can be, or if there is none."""
    wanted = object_at(data, "audioProcessingConfig").get("ambientSoundConfig")
    if not wanted or ambient_sound(data) is not None:
        return ""
    return f"no ambient sound is played: set 'prebuiltAmbientSound' to one of {', '.join(_SOUNDS)}"


_DEFAULT_INACTIVITY_TIMEOUT = 10.0
"""Seconds, for an app without `inactivityTimeout`."""


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
    """The words said when a turn fails; empty: the server's own words."""
    max_fallbacks: int
    """Failed turns in a row that are answered by the fallback; the next one ends the call. 0: no limit."""
    ends_on_error: bool
    """Whether the first failed turn ends the session (`END_SESSION`)."""
    escalates_on_error: bool
    """Whether that session is escalated to a person instead of hanging up."""


def read_call_settings(app: CxApp) -> CallSettings:
    """Read the settings from the app's main file."""
    audio = object_at(app.data, "audioProcessingConfig")
    errors = object_at(app.data, "errorHandlingSettings")
    fallback = object_at(errors, "fallbackResponseConfig")
    messages = object_at(fallback, "customFallbackMessages")
    strategy = str(errors.get("errorHandlingStrategy") or "")
    barge_in = object_at(audio, "bargeInConfig")
    channel = object_at(app.data, "defaultChannelProfile")
    # Barge-in may be off for all of an app's calls or for those of the channel.
    barge_in_disabled = as_bool(barge_in.get("disableBargeIn")) or as_bool(channel.get("disableBargeInControl"))
    return CallSettings(
        inactivity_timeout=parse_duration(audio.get("inactivityTimeout")) or _DEFAULT_INACTIVITY_TIMEOUT,
        barge_in=False if barge_in_disabled else None,
        takes_keys=not as_bool(channel.get("disableDtmf")),
        # A message in another language than the app's is still preferred to the server's general sentence.
        fallback="" if strategy == "NONE" else str(messages.get(app.language) or next(iter(messages.values()), "")),
        max_fallbacks=_whole_number(fallback.get("maxFallbackAttempts")) if strategy == "FALLBACK_RESPONSE" else 0,
        ends_on_error=strategy == "END_SESSION",
        escalates_on_error=as_bool(object_at(errors, "endSessionConfig").get("escalateSession")),
    )


def _whole_number(value: JsonValue) -> int:
    """Return a whole number, which protocol buffers may write as text in JSON; 0 if the value is no number."""
    return int(value) if isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal()) else 0
