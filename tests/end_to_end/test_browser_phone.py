"""A person in a real Chromium talks to the example agent at `/phone`, and goes on when the agent is listening.

Screenshots are left in `var/screenshots`.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.end_to_end.server_process import ROOT, ServerProcess, run_command, serve
from tests.web.browser import Browser, chromium, open_browser

CALLERS = Path(__file__).parent / "callers"
SHOTS = ROOT / "var" / "screenshots"
ATTEMPTS = 3

# The page gets this stream for its microphone. `say` plays a WAV file into it, when the test wants it said: a busy
# machine delays the words then, and does not cut them off or place them over the agent's.
MICROPHONE = """
navigator.mediaDevices.getUserMedia = async () => {
  const context = new AudioContext();
  const stream = context.createMediaStreamDestination();
  window.say = async (wav) => {
    const source = context.createBufferSource();
    source.buffer = await context.decodeAudioData(Uint8Array.from(atob(wav), (c) => c.charCodeAt(0)).buffer);
    source.connect(stream);
    await new Promise((done) => { source.onended = done; source.start(); });
  };
  return stream.stream;
};
"""
LISTENING = "document.querySelector('.pill')?.textContent === 'listening'"

pytestmark = [
    pytest.mark.local,
    pytest.mark.end_to_end,
    pytest.mark.skipif(chromium() is None, reason="no Chromium here"),
]


async def say(browser: Browser, name: str, understood: str) -> None:
    """Say it when the agent is listening, and again where the agent did not understand, as a person would."""
    wav = base64.b64encode((CALLERS / f"{name}_hibari_heart.wav").read_bytes()).decode()
    for _ in range(ATTEMPTS):
        await browser.until(LISTENING, 120)
        await browser.run_async(f"window.say('{wav}').then(done)")
        await browser.until(f"({understood}) || !({LISTENING})", 120)
        await browser.until(f"({understood}) || ({LISTENING})", 120)
        if await browser.run(f"return {understood}"):
            return
    raise AssertionError(f"{name} was said {ATTEMPTS} times: {await browser.run('return document.body.innerText')}")


async def look(browser: Browser, name: str) -> None:
    """A screenshot, and nothing for axe to complain about, wide and narrow."""
    for width in (1440, 390):
        await browser.size(width)
        await browser.screenshot(SHOTS / f"{name}-{width}.png")
        wide = await browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} at {width} px: {wide} px too wide"
        assert await browser.violations() == []


async def get(server: ServerProcess, path: str) -> Any:
    url = f"http://127.0.0.1:{server.http_port}{path}"
    async with aiohttp.ClientSession(headers=server.login) as session, session.get(url) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def log_in(browser: Browser, server: ServerProcess) -> None:
    """By a one-time link."""
    environment = {"XDG_RUNTIME_DIR": str(server.token_file.parents[1])}
    arguments = ("login-link", "--http", f"127.0.0.1:{server.http_port}")
    printed = await asyncio.to_thread(run_command, arguments, **environment)
    assert printed.returncode == 0, printed.stderr
    await browser.open(printed.stdout.strip())
    await browser.until("location.pathname == '/' && document.querySelector('main')?.textContent")
    assert "#" not in await browser.run("return location.href")


async def hold_the_conversation(browser: Browser, server: ServerProcess, url: str) -> str:
    """The call's id."""
    await browser.devtools("Page.addScriptToEvaluateOnNewDocument", {"source": MICROPHONE})
    await browser.open(url + "/phone")
    await browser.until("document.querySelector('form button')")
    await look(browser, "phone")
    await browser.run("document.querySelector('form').requestSubmit()")
    await browser.until("/harbou?r/i.test(document.querySelector('.talk')?.textContent ?? '')", 60)
    (live,) = (await get(server, "/api/live"))["calls"]
    assert live["wire"] == "browser"
    await say(browser, "c10", "/status of my order/i.test(document.querySelector('.talk').textContent)")
    await browser.until("/\\d\\.\\d\\d s/.test(document.querySelector('#answered-after').textContent)", 60)
    await browser.until("document.body.textContent.includes('ms') && !/back–/.test(document.body.textContent)", 30)
    await look(browser, "phone-talking")
    return str(live["id"])


async def watch_it_live(browser: Browser, url: str, call_id: str) -> None:
    await browser.open(f"{url}/live/{call_id}")
    await browser.until("/status of my order/i.test(document.querySelector('.talk')?.textContent ?? '')", 30)
    await look(browser, "live-browser-call")


async def play_it(browser: Browser, url: str, call_id: str) -> None:
    await browser.open(f"{url}/calls/{call_id}")
    await browser.until("document.querySelector('audio')?.readyState >= 1")
    assert await browser.run("return document.querySelector('audio').duration") > 10
    await browser.run("document.querySelector('audio').muted = true; document.querySelector('.said button').click()")
    await browser.until("document.querySelector('audio').currentTime > 0")
    await look(browser, "call-from-browser")


async def talk(server: ServerProcess) -> str:
    url = f"http://127.0.0.1:{server.http_port}"
    async with open_browser() as caller, open_browser() as watcher:
        await log_in(caller, server)
        await log_in(watcher, server)
        call_id = await hold_the_conversation(caller, server, url)
        await watch_it_live(watcher, url, call_id)
        # The answer to the tracking number: the agent has understood and looked it up.
        await say(caller, "c23", "/Parcel 84276 is/.test(document.querySelector('.talk').textContent)")
        await caller.run("[...document.querySelectorAll('.keypad button')].at(-1).click()")
        await caller.run("document.querySelector('.danger').click()")
        await caller.until("document.body.textContent.includes('The call is over')")
        assert await caller.errors() == []
        await asyncio.to_thread(server.wait_for_records, 1)
        await play_it(watcher, url, call_id)
        assert await watcher.errors() == []
    return call_id


async def test_a_browser_talks_to_the_example_agent(tmp_path: Path) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    settings = {"RECORDS__RECORDINGS": str(tmp_path / "recordings")}
    with serve(tmp_path, "--http", "127.0.0.1:0", **settings) as server:
        call_id = await talk(server)
        (record,) = server.records()
    assert record["id"] == call_id
    assert (record["wire"], record["channel"], record["end_reason"]) == ("browser", "VOICE-WEB", "caller_hangup")
    assert "status of my order" in " ".join(turn["user_input"].lower() for turn in record["turns"])
    assert record["state"]["tracking_number"] == "84276"
    assert [one["digit"] for one in record["digits"]] == ["#"]
    assert record["media"]["packets_received"] > 500
    assert record["media"]["packets_sent"] > 100
