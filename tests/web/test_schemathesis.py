"""Schemathesis asks whatever the OpenAPI description lets it think of: nothing makes the server fail."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from callagent.records import CallRecord
from callagent.web.accounts import Account, Right
from callagent.web.control import Controls, DialRefused, DialRequest
from tests.web.dashboard_server import live_call, serve_dashboard
from tests.web.entry import TOKEN
from tests.web.test_control import copied_project

EXAMPLES = 20

# Names that are there, beside those it makes up.
KNOWN = """
[parameters]
id = "live1"
name = "parcels"
environment = "sandbox"
"""


def named(records: list[CallRecord]) -> None:
    records[-1].id = "live1"


pytestmark = pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not here")


async def dial(asked: DialRequest) -> str:
    if not asked.target:
        raise DialRefused("no trunk")
    return "c42"


async def ask_everything(folder: Path, examples: int, *known: str, account: bool = True) -> None:
    controls = Controls(["support"], dial=dial)
    secret = "t" * 40 if account else TOKEN
    tester = Account("tester", frozenset(Right), token=hashlib.sha256(secret.encode()).hexdigest())
    projects = [copied_project(folder / "project")]
    async with serve_dashboard(
        folder, [tester] if account else [], count=30, projects=projects, controls=controls, change=named
    ) as served:
        served.calls["live1"] = live_call()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", *known, "run", served.url + "/api/openapi.json"),
            *("--checks", "not_a_server_error", "--max-examples", str(examples), "--seed", "1", "--no-color"),
            # An event stream has no end while its call has none.
            *("--header", f"Authorization: Bearer {secret}"),
            *("--exclude-path-regex", "live.*/events$", "--suppress-health-check", "all", "--request-timeout", "20"),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(600):
                output = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
    assert process.returncode == 0, output[-6000:]
    assert "returned only 401/403" not in output, output[-6000:]
    assert int(re.findall(r"(\d+) generated", output)[-1]) > 20 * examples, output[-3000:]


async def test_no_request_of_the_description_is_answered_5xx(tmp_path: Path) -> None:
    await ask_everything(tmp_path, EXAMPLES)


async def test_no_request_about_what_is_there_is_answered_5xx(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(KNOWN)
    await ask_everything(tmp_path, EXAMPLES, "--config-file", "known.toml")


async def test_with_the_token_of_a_server_without_accounts_nothing_is_answered_5xx(tmp_path: Path) -> None:
    await ask_everything(tmp_path, 3, account=False)


@pytest.mark.acceptance("web")
async def test_no_request_of_many_is_answered_5xx(tmp_path: Path) -> None:
    await ask_everything(tmp_path, 10 * EXAMPLES)
