"""Where an app's recordings go."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.cx import check_cx_app, read_cx_app
from callagent.agents.cx.engine.call_settings import recording_folder
from callagent.call_info import CallInfo
from tests.agents.cx.support import driven, write_app

INFO = CallInfo("call-1", "inbound", None, None, "sip", datetime(2026, 3, 2, tzinfo=UTC))
NAME = "projects/p1/locations/eu/apps/a-1"


@pytest.mark.parametrize(
    ("app", "config", "place"),
    [
        ({}, None, ""),
        ({}, {"gcsBucket": "gs://b"}, "local/local/Little_App/2026-03-02/call-1"),
        ({"name": NAME}, {"gcsBucket": "gs://b"}, "p1/eu/a-1/2026-03-02/call-1"),
        ({"name": NAME}, {"gcsPathPrefix": "x/${app}-$session/"}, "x/a-1-call-1"),
        ({"displayName": "../../etc"}, {"gcsPathPrefix": "$app/$date"}, "_.._etc/2026-03-02"),
        ({}, {"gcsPathPrefix": "/../.././a b/\u00e9\\c/$other"}, "a_b/__c/_other"),
        ({}, {"gcsPathPrefix": "a/" * 100}, "/".join("a" * 12)),
    ],
)
def test_placeholders_are_filled_in_and_lead_nowhere_else(
    app: dict[str, Any], config: dict[str, Any] | None, place: str, tmp_path: Path
) -> None:
    logging = {} if config is None else {"loggingSettings": {"audioRecordingConfig": config}}
    assert recording_folder(read_cx_app(write_app(tmp_path, app={**app, **logging})), INFO) == place


async def test_the_call_is_told_before_it_is_answered(tmp_path: Path) -> None:
    logging = {"audioRecordingConfig": {"gcsBucket": "gs://b", "gcsPathPrefix": "$app/$session"}}
    path = write_app(tmp_path, app={"loggingSettings": logging})
    (warning,) = check_cx_app(path).warnings
    assert (warning.rule, "the bucket is not written to" in warning.message) == ("CX016", True)
    async with driven(path) as agent:
        assert agent.agent.record().recording.startswith("Little_App/")
