"""A real Prometheus, with the configuration that is deployed, reads the metrics of a server."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.web.dashboard_server import serve_dashboard

DEPLOY = Path(__file__).parents[2] / "deploy"

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus here")


def configuration(folder: Path, target: str, token: str) -> Path:
    """That of `deploy/`, with this server and token, in a hurry and without alerts."""
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    (folder / "token").write_text(token)
    changes = {
        "/run/secrets/metrics_token": "token",
        "127.0.0.1:8080": target,
        "scrape_interval: 15s": "scrape_interval: 200ms",
        "rule_files: [alerts.yml]": "",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "prometheus.yml").write_text(text)
    return folder / "prometheus.yml"


async def target_of(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """What Prometheus says of its target once it has asked it."""
    async with asyncio.timeout(120):
        while True:
            await asyncio.sleep(0.1)
            try:
                async with session.get(url + "/api/v1/targets") as answer:
                    targets = json.loads(await answer.text())["data"]["activeTargets"]
            except (aiohttp.ClientError, ValueError, KeyError):
                continue
            if targets and targets[0]["health"] != "unknown":
                return dict(targets[0])


@pytest.mark.parametrize(("token", "health"), [("for the metrics", "up"), ("another", "down")])
async def test_prometheus_reads_the_metrics_with_its_token(tmp_path: Path, token: str, health: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    ways_in = {"metrics_token": "for the metrics"}
    async with serve_dashboard(tmp_path, count=1, ways_in=ways_in) as served, aiohttp.ClientSession() as session:
        config = configuration(tmp_path, served.url.removeprefix("http://"), token)
        process = await asyncio.create_subprocess_exec(
            *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"),
            *(f"--web.listen-address={listen}", "--log.level=error"),
        )
        try:
            target = await target_of(session, f"http://{listen}")
        finally:
            process.terminate()
            await process.wait()
    assert target["health"] == health
    assert ("401" in target["lastError"]) == (health == "down"), target["lastError"]
