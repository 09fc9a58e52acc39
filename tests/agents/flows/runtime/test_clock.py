"""A pinned clock holds for `datetime` too, however a project imports it."""

from __future__ import annotations

import datetime as real
import pickle
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.flows.runtime import FlowRuntime
from callagent.agents.flows.runtime.clock import pinned_datetime

NOON = real.datetime(2026, 3, 2, 12, 0, tzinfo=real.UTC)


class Channel:
    def send(self, message: dict[str, Any]) -> None:
        pass

    def ask(self, message: dict[str, Any]) -> Any:
        return None


@pytest.mark.parametrize(
    ("imports", "body"),
    [
        ("from datetime import datetime, UTC", "datetime.now(UTC)"),
        ("import datetime", "datetime.datetime.now(tz=datetime.UTC)"),
        ("import datetime as dt", "dt.datetime.now(dt.timezone.utc)"),
        ("from functions.helper import moment", "moment()"),
        ("", "conv.clock.now()"),
    ],
)
def test_the_projects_now_is_the_pinned_instant(tmp_path: Path, imports: str, body: str):
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "helper.py").write_text(
        "def moment():\n    from datetime import datetime, UTC\n    return datetime.now(UTC)\n"
        "def helper(conv):\n    pass\n"
    )
    (folder / "f.py").write_text(
        f"{imports}\ndef f(conv):\n    conv.state.at = {body}\n    return conv.state.at.isoformat()"
    )
    runtime = FlowRuntime(tmp_path)
    session = runtime.open({"now": NOON.isoformat()}, {}, Channel())
    answer = session.handle({"op": "run", "function": {"kind": "global", "name": "f"}, "arguments": {}})
    assert answer["returned"] == NOON.isoformat()
    assert pickle.loads(answer["checkpoint"]["state:at"])[1] == NOON


def test_everything_else_is_as_usual():
    pinned = pinned_datetime(NOON)
    assert pinned.datetime(2020, 1, 2) == real.datetime(2020, 1, 2)
    assert type(pinned.datetime.fromisoformat("2020-01-02")) is real.datetime
    assert type(pinned.datetime.strptime("2020", "%Y")) is real.datetime
    assert type(pinned.date.fromisoformat("2020-01-02")) is real.date
    assert pinned.datetime.combine(real.date(2020, 1, 2), real.time(3)) == real.datetime(2020, 1, 2, 3)
    assert isinstance(real.datetime(2020, 1, 1), pinned.datetime)
    assert isinstance(real.datetime(2020, 1, 1), pinned.date)
    assert not isinstance(real.date(2020, 1, 1), pinned.datetime)
    assert pinned.datetime.utcnow() == NOON.replace(tzinfo=None)
    assert pinned.date.today() == NOON.astimezone().date()
    assert pinned.datetime.today() == NOON.astimezone().replace(tzinfo=None)
    assert pinned.timedelta is real.timedelta
