"""What is deployed names only metrics and settings that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from callagent.config import load_config
from callagent.records import CallRecord
from callagent.records.metrics import Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVER_GAUGES = {"callagent_calls_live", "callagent_calls_limit", "callagent_draining", "callagent_outbox_lines"}


def known() -> set[str]:
    metrics = Metrics()
    metrics.ended(CallRecord(id="c"))
    families = re.findall(r"^# TYPE (\w+) (\w+)$", metrics.text({}), re.M)
    names = set(SERVER_GAUGES)
    for name, kind in families:
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return names


def expressions() -> list[str]:
    rules = YAML(typ="safe").load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "callagent.json").read_text())
    return found + [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("expression", expressions())
def test_alerts_and_dashboards_ask_for_metrics_that_there_are(expression: str) -> None:
    named = set(re.findall(r"callagent_\w+", expression))
    assert named <= known()


def test_the_server_exports_the_gauges() -> None:
    source = (DEPLOY.parent / "callagent" / "server.py").read_text() + (
        DEPLOY.parent / "callagent" / "observation.py"
    ).read_text()
    assert all(gauge in source for gauge in SERVER_GAUGES)


def test_the_commented_settings_are_the_defaults() -> None:
    shipped = load_config(DEPLOY / "callagent.toml", {})
    assert shipped == load_config(None, {})


def test_the_examples_in_the_comments_are_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "callagent.toml").read_text()
    start = text.index("# [[users]]")
    example = re.sub(r"^# ?", "", text[start : text.index("[limits]")], flags=re.M)
    lines = [line for line in example.splitlines() if line.startswith("[[") or " = " in line]
    (tmp_path / "callagent.toml").write_text("\n".join(lines))
    config = load_config(tmp_path / "callagent.toml", {})
    assert [user.name for user in config.users] == ["ann", "prometheus"]
    assert config.webhooks[0].events == ("call.started", "call.ended")


@pytest.mark.parametrize("name", ["compose.yaml", "prometheus/prometheus.yml"])
def test_yaml_is_read(name: str) -> None:
    assert YAML(typ="safe").load((DEPLOY / name).read_text())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_promtool_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")], check=True)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_promtool_takes_what_a_server_exports() -> None:
    metrics = Metrics()
    metrics.calls_started.add("sip")
    hostile = CallRecord(id="c", end_reason='a"b\\c\nd', metrics=[{"name": 'X"}\n# EVIL 1', "value": 3}])
    metrics.ended(hostile)
    text = metrics.text(dict.fromkeys(SERVER_GAUGES, ("A gauge.", 1.0)))
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    # 3: style only, such as a histogram's name; 1: it cannot be read.
    assert done.returncode in (0, 3), done.stderr
    assert list(text_string_to_metric_families(text))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    # The program is where it will be installed, not here.
    unit = (DEPLOY / "callagent.service").read_text().replace("/opt/callagent/bin/callagent", "/bin/true")
    (tmp_path / "callagent.service").write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "callagent.service")], capture_output=True, text=True
    )
    assert "callagent.service" not in done.stderr, done.stderr
