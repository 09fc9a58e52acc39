"""What is deployed names only metrics and settings that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from ruamel.yaml import YAML

from callagent.config import Config, load_config
from callagent.failover import Lineup, Member
from callagent.observability import Metrics, provider_metrics
from callagent.records import CallRecord
from callagent.sip.trunks import TrunkState, trunk_metrics
from callagent.workers import WORKER_FIGURES

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVER_GAUGES = {
    *("callagent_calls_live", "callagent_calls_limit", "callagent_draining", "callagent_outbox_lines"),
    *("callagent_store_failing", "callagent_store_lost", "callagent_spool_failing"),
}


def exported() -> str:
    """All families: those of a server without trunks and providers too."""
    metrics = Metrics()
    metrics.ended(CallRecord(id="c"))
    lines = [
        *provider_metrics([Lineup("voice", [Member("deepgram", 1)])]),
        *trunk_metrics({"carrier": TrunkState(registered=True, reachable=True)}),
        *WORKER_FIGURES.lines(),
        "# TYPE callagent_sip_certificate_end_seconds gauge",
    ]
    return metrics.text(dict.fromkeys(SERVER_GAUGES, ("A gauge.", 1.0))) + "".join(f"{line}\n" for line in lines)


def known() -> set[str]:
    names = set()
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", exported(), re.M):
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


def test_every_alarm_and_failure_is_shown_or_alerted() -> None:
    asked = " ".join(expressions())
    for name in ("provider_alarm", "provider_outages", "workers_live", "rtp_round_trip", "call_provider_failures"):
        assert f"callagent_{name}" in asked


def test_the_server_exports_the_gauges() -> None:
    source = (DEPLOY.parent / "callagent" / "server" / "server.py").read_text() + (
        DEPLOY.parent / "callagent" / "server" / "observers.py"
    ).read_text()
    assert all(gauge in source for gauge in SERVER_GAUGES)


def test_the_commented_settings_are_the_defaults() -> None:
    shipped = load_config(DEPLOY / "callagent.toml", {})
    assert shipped.with_file("") == load_config(None, {})


def settings_of(section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield name
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from settings_of(part)


def test_every_setting_is_in_the_commented_file() -> None:
    named = set(re.findall(r"\w+", (DEPLOY / "callagent.toml").read_text()))
    assert set(settings_of(Config)) <= named


def test_the_examples_in_the_comments_are_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "callagent.toml").read_text()
    start = text.index("# [[users]]")
    example = re.sub(r"^# ?", "", text[start : text.index("[limits]")], flags=re.M)
    lines = [line for line in example.splitlines() if line.startswith("[[") or " = " in line]
    (tmp_path / "callagent.toml").write_text("\n".join(lines))
    config = load_config(tmp_path / "callagent.toml", {})
    assert [user.name for user in config.users] == ["ann", "reports"]
    assert config.webhooks[0].events == ("call.started", "call.ended")


@pytest.mark.parametrize("name", ["compose.yaml", "prometheus/prometheus.yml"])
def test_yaml_is_read(name: str) -> None:
    assert YAML(typ="safe").load((DEPLOY / name).read_text())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    # The token is where compose puts it, not here.
    assert "/run/secrets/metrics_token" in text
    (tmp_path / "token").write_text("secret")
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/secrets/metrics_token", "token"))
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", tmp_path)
    subprocess.run(["promtool", "check", "config", str(tmp_path / "prometheus.yml")], check=True)


def test_server_and_prometheus_have_the_same_token() -> None:
    compose = YAML(typ="safe").load((DEPLOY / "compose.yaml").read_text())
    server, prometheus = compose["services"]["callagent"], compose["services"]["prometheus"]
    assert server["secrets"] == prometheus["secrets"] == list(compose["secrets"]) == ["metrics_token"]
    variables = {name: value for name, value in server["environment"].items() if name.endswith("_FILE")}
    assert variables == {"CALLAGENT_METRICS_TOKEN_FILE": "/run/secrets/metrics_token"}


def test_the_token_of_the_metrics_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    config = load_config(None, {"CALLAGENT_METRICS_TOKEN_FILE": str(tmp_path / "token")})
    assert config.http.metrics_token.get_secret_value() == "secret"


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
