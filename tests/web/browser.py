"""A real Chromium, driven through chromedriver's HTTP interface (WebDriver)."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"),
    *("--disable-component-update", "--disable-default-apps", "--disable-sync", "--no-first-run", "--mute-audio"),
    *("--force-prefers-reduced-motion", "--autoplay-policy=no-user-gesture-required"),
)


def axe() -> str:
    """axe-core, as a package of the extra `dev` ships it; nothing else of that package is used."""
    package = importlib.util.find_spec("axe_playwright_python")
    assert package is not None, "the accessibility check needs the extra `dev`"
    assert package.origin is not None
    return Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8")


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def command(self, method: str, path: str, **data: Any) -> Any:
        body = None if method == "GET" else data
        async with self._session.request(method, self._url + path, json=body) as answer:
            value = (await answer.json())["value"]
            if answer.status != 200:
                raise AssertionError(f"{path}: {value['error']}: {value['message']}")
            return value

    async def open(self, url: str) -> None:
        await self.command("POST", "/url", url=url)

    async def run(self, script: str, *arguments: Any) -> Any:
        return await self.command("POST", "/execute/sync", script=script, args=list(arguments))

    async def run_async(self, script: str) -> Any:
        """`done` is the callback."""
        code = f"const done = arguments[arguments.length - 1]; {script}"
        return await self.command("POST", "/execute/async", script=code, args=[])

    async def until(self, condition: str, seconds: float = 60.0) -> Any:
        """Wait until a JavaScript expression is true."""
        try:
            async with asyncio.timeout(seconds):
                while not (found := await self.run(f"return {condition}")):
                    await asyncio.sleep(0.1)
                return found
        except TimeoutError:
            text = await self.run("return document.body.innerText")
            raise AssertionError(f"{condition} did not come true; the page says:\n{text}") from None

    async def size(self, width: int, height: int = 900) -> None:
        """Of the page itself; a window cannot be as narrow as a phone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.devtools("Emulation.setDeviceMetricsOverride", metrics)

    async def scheme(self, name: str) -> None:
        """`light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        await self.devtools("Emulation.setEmulatedMedia", {"features": features})

    async def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return await self.command("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    async def screenshot(self, path: Path) -> None:
        shot = await self.devtools("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(shot["data"]))

    async def violations(self) -> list[str]:
        """What axe finds wrong with the page (WCAG A and AA, and its best practices)."""
        await self.run(axe() + "; window.axe = axe;")
        found = await self.run_async("axe.run(document, {resultTypes: ['violations']}).then((r) => done(r.violations))")
        return [f"{one['id']}: {node['html'][:200]} {node['failureSummary']}" for one in found for node in one["nodes"]]

    async def errors(self) -> list[str]:
        """What the console complained about since the last look."""
        entries = await self.command("POST", "/se/log", type="browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]


@asynccontextmanager
async def open_browser(*flags: str) -> AsyncIterator[Browser]:
    driver = shutil.which("chromedriver")
    binary = chromium()
    assert driver
    assert binary
    process = await asyncio.create_subprocess_exec(driver, "--port=0", stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            while b"started successfully on port" not in (line := await process.stdout.readline()):
                assert line, "chromedriver ended"
        port = int(line.split(b"port ")[1].strip().rstrip(b"."))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=180)) as session:
            options = {"binary": binary, "args": [*FLAGS, *flags]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            async with session.post(
                f"http://127.0.0.1:{port}/session", json={"capabilities": {"alwaysMatch": wanted}}
            ) as made:
                value = (await made.json())["value"]
                assert "sessionId" in value, value
            browser = Browser(session, f"http://127.0.0.1:{port}/session/{value['sessionId']}")
            try:
                yield browser
            finally:
                await browser.command("DELETE", "")
    finally:
        process.terminate()
        await process.wait()
