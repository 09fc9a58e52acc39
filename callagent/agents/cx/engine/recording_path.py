"""Where an app wants its calls' recordings: `loggingSettings.audioRecordingConfig`, as a place in a local folder.

The bucket is not written to. Placeholders of the path: `$project`, `$location`, `$app`, `$date`, `$session`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from callagent.agents.cx.format import CxApp
from callagent.call_info import CallInfo

DEFAULT_PREFIX = "$project/$location/$app/$date/$session/"
"""Of the platform, where an app names a bucket only."""
LOCAL = "local"
"""In the place of a project or location that an app does not name."""
_CONFIGS = ("audioRecordingConfig", "unredactedAudioRecordingConfig")
_PLACEHOLDER = re.compile(r"\$(project|location|app|date|session)\b|\$\{(project|location|app|date|session)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_RESOURCE = re.compile(r"projects/([^/]+)/locations/([^/]+)/apps/([^/]+)")
_MAX_FOLDERS, _MAX_NAME = 12, 100


def recording_place(app: CxApp, info: CallInfo) -> str:
    """The folder below that of the recordings, in letters, digits, points and dashes; empty: the app says nothing."""
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
    """One folder's name that leads nowhere else."""
    return _UNSAFE.sub("_", str(name)).strip(".")[:_MAX_NAME] or "_"
