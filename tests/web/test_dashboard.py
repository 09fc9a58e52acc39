"""The pages in a real Chromium. Screenshots are left in `var/screenshots`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callagent.agents.flows import FlowProject, load_project
from callagent.records import CallRecord
from callagent.web.access import SESSION_COOKIE
from callagent.web.accounts import Account, Right, hash_password
from callagent.web.control import Controls
from tests.end_to_end.scripted import until
from tests.web.browser import Browser, chromium, open_browser
from tests.web.dashboard_server import Served, live_call, serve_dashboard
from tests.web.test_api import HOSTILE

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "var" / "screenshots"

CONTROLS = Controls(["support", "night desk"], numbers=True)

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium here")


class LoadedProject(FlowProject):
    """A project as the pages see it, without workers."""

    def __init__(self, path: Path) -> None:
        self.project = load_project(path)[0]
        self.name = "parcels"


def spoiled(records: list[CallRecord]) -> None:
    record = records[-1]
    record.from_number = HOSTILE
    record.turns[1].user_input = HOSTILE
    record.turns[1].functions[0].name = "look_up_parcel"
    record.turns[1].barge_in = True
    record.turns[1].spoken[0].interrupted = True
    record.errors = [{"what": "model", "detail": "timeout", "at": 3.2}]
    record.transfers = [{"target": "support", "method": "refer", "status": "refused", "detail": "486", "at": 9.1}]
    record.wire = "sip"
    record.signalling = [
        {
            "at": f"2026-01-02T03:04:05.{number}00+00:00", "sent": sent, "peer": "udp 192.0.2.1:5060", "line": line,
            "text": f"{line}\r\nCall-ID: {HOSTILE}\r\n",
        }
        for number, (sent, line) in enumerate(
            ((False, f"INVITE sip:{HOSTILE} SIP/2.0"), (True, "SIP/2.0 100 Trying"), (True, "SIP/2.0 200 OK"),
             (False, "ACK sip:agent@192.0.2.9 SIP/2.0"), (True, "BYE sip:caller@192.0.2.1 SIP/2.0"))
        )
    ]  # fmt: skip
    record.state = {"tracking_number": "84276", "parcel": {"status": "missed"}}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    SHOTS.mkdir(parents=True, exist_ok=True)
    accounts = (Account("ann", frozenset(Right), hash_password("correct horse")),)
    projects = [LoadedProject(ROOT)]
    async with serve_dashboard(
        tmp_path, accounts, count=120, projects=projects, change=spoiled, controls=CONTROLS
    ) as served:
        served.calls["live1"] = live_call()
        yield served


@pytest.fixture
async def browser(served: Served) -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        await log_in(browser, served)
        yield browser


async def log_in(browser: Browser, served: Served) -> None:
    cookie, _ = served.access.accounts.log_in("ann", time.monotonic())
    await browser.open(served.url + "/login")
    await browser.command("POST", "/cookie", cookie={"name": SESSION_COOKIE, "value": cookie, "httpOnly": True})


PAGES = {
    "overview": ("/", "document.querySelector('.figures')"),
    "live": ("/live", "document.querySelector('table')"),
    "live_call": ("/live/live1", "document.querySelector('.talk')"),
    "calls": ("/calls", "document.querySelectorAll('tbody tr').length == 50"),
    "call": ("/calls/{last}", "document.querySelector('.wave')"),
    "project": ("/project", "document.querySelector('.graph .node')"),
    "phone": ("/phone", "document.querySelector('.keypad')"),
    "login": ("/login", "document.querySelector('form')"),
}


@pytest.mark.parametrize("name", PAGES)
async def test_every_page_fits_narrow_and_wide_light_and_dark(served: Served, browser: Browser, name: str) -> None:
    path, ready = PAGES[name]
    url = served.url + path.format(last=served.records[-1].id)
    for width, scheme in ((1440, "light"), (390, "dark"), (1440, "dark"), (390, "light")):
        await browser.size(width)
        await browser.scheme(scheme)
        await browser.open(url)
        await browser.until(ready)
        for details in range(await browser.run("return document.querySelectorAll('details').length")):
            if details < 4:
                await browser.run("document.querySelectorAll('details')[arguments[0]].open = true", details)
        await browser.screenshot(SHOTS / f"{name}-{width}-{scheme}.png")
        wide = await browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{width} px: {wide} px too wide"
        assert await browser.violations() == []
    assert await browser.errors() == []


async def test_hostile_names_are_text(served: Served, browser: Browser) -> None:
    await browser.open(f"{served.url}/calls/{served.records[-1].id}")
    await browser.until("document.querySelector('.talk')")
    assert "<script>alert(1)</script>" in await browser.run("return document.querySelector('h1').textContent")
    assert await browser.run("return document.querySelectorAll('main script').length") == 0
    assert await browser.errors() == []


async def test_a_search_finds_a_call_and_opens_it_by_keyboard(served: Served, browser: Browser) -> None:
    await browser.open(served.url + "/calls")
    await browser.until("document.querySelectorAll('tbody tr').length == 50")
    call_id = served.records[5].id
    await browser.run(
        "const f = document.querySelector('[name=search]'); f.value = arguments[0]; f.form.requestSubmit()", call_id
    )
    await browser.until("document.querySelectorAll('tbody tr').length == 1")
    await browser.until("location.search.includes('search=')")
    await browser.run("document.querySelector('tbody a').focus()")
    keys = [{"type": "keyDown", "value": "\ue007"}, {"type": "keyUp", "value": "\ue007"}]
    await browser.command("POST", "/actions", actions=[{"type": "key", "id": "keyboard", "actions": keys}])
    await browser.until("document.querySelector('.talk')")
    await browser.until(f"location.pathname == '/calls/{call_id}'")
    await browser.until("document.activeElement.tagName == 'H1'")


async def test_pages_of_calls_turn(served: Served, browser: Browser) -> None:
    await browser.open(served.url + "/calls")
    await browser.until("document.querySelectorAll('tbody tr').length == 50")
    first = await browser.run("return document.querySelector('tbody a').href")
    await browser.run("[...document.querySelectorAll('button')].find((b) => b.textContent == 'Older').click()")
    await browser.until(f"document.querySelector('tbody a').href != {json.dumps(first)}")
    await browser.run("[...document.querySelectorAll('button')].find((b) => b.textContent == 'Newer').click()")
    await browser.until(f"document.querySelector('tbody a').href == {json.dumps(first)}")


async def test_the_transcript_plays_the_recording(served: Served, browser: Browser) -> None:
    await browser.open(f"{served.url}/calls/{served.records[-1].id}")
    await browser.until("document.querySelector('audio')?.readyState >= 1")
    assert await browser.run("return document.querySelector('audio').duration") == pytest.approx(2.0, abs=0.05)
    await browser.run("document.querySelector('audio').muted = true; document.querySelector('.said button').click()")
    await browser.until("document.querySelector('audio').currentTime > 0")


async def test_a_live_call_grows_and_is_hung_up(served: Served, browser: Browser) -> None:
    await browser.open(served.url + "/live")
    await browser.until("document.querySelector('tbody a')")
    await browser.run("document.querySelector('tbody a').click()")
    await browser.until("document.querySelector('.talk')")
    served.calls["live1"].record.turns[1].user_input = "where is my second parcel"
    await browser.until("document.querySelector('.talk').textContent.includes('second parcel')")
    await browser.run("window.confirm = () => true; document.querySelector('.danger').click()")
    await browser.until("document.querySelector('.danger').disabled")
    # The button is off before the server is asked.
    await until(lambda: served.calls["live1"].ended, 60)
    assert len(served.calls["live1"].ended) == 1
    del served.calls["live1"]
    await browser.until("document.querySelector('main').textContent.includes('The call is over')")


async def test_a_live_call_is_listened_to_and_taken_over(served: Served, browser: Browser) -> None:
    call = served.calls["live1"]
    await browser.open(served.url + "/live/live1")
    await browser.until("document.querySelector('form.takeover') && document.querySelector('[aria-pressed]')")
    await browser.run("document.querySelector('[aria-pressed]').click()")
    await browser.until("document.querySelector('[aria-pressed=true]')")
    async with asyncio.timeout(60):
        while not call.taps:
            await asyncio.sleep(0.05)
    for _ in range(20):
        call.taps[0].agent.append(b"\x00\x10" * 160)
    async with asyncio.timeout(60):
        while call.taps[0].agent:
            await asyncio.sleep(0.05)
    await browser.run("document.querySelector('[aria-pressed]').click()")
    async with asyncio.timeout(60):
        while call.taps:
            await asyncio.sleep(0.05)
    await browser.run("window.confirm = () => true; document.querySelector('form.takeover').requestSubmit()")
    async with asyncio.timeout(60):
        while not call.taken_over:
            await asyncio.sleep(0.05)
    assert call.taken_over[0].destination == "support"
    await browser.run(
        "const form = document.querySelector('form.takeover'), number = form.querySelector('input');"
        "form.querySelector('select').value = ''; form.querySelector('select').dispatchEvent(new Event('change'));"
        "number.value = '+441632960123'; form.requestSubmit()"
    )
    async with asyncio.timeout(60):
        while len(call.taken_over) < 2:
            await asyncio.sleep(0.05)
    assert call.taken_over[1].number == "+441632960123"
    assert await browser.violations() == []
    assert await browser.errors() == []


async def test_logging_in_by_the_page(served: Served) -> None:
    port = served.url.rpartition(":")[2]
    async with open_browser("--host-resolver-rules=MAP phone.test 127.0.0.1") as browser:
        outside = f"http://phone.test:{port}"
        await browser.open(outside + "/calls")
        await browser.until("location.pathname == '/login' && document.querySelector('form')")
        fill = (
            "const f = document.querySelector('form'); f.elements.name.value = 'ann';"
            "f.elements.password.value = arguments[0]; f.requestSubmit()"
        )
        await browser.until("performance.getEntriesByName(location.origin + '/static/login.js').length > 0")
        await browser.run(fill, "wrong")
        await browser.until("document.querySelector('#message').textContent.includes('wrong')")
        await browser.run(fill, "correct horse")
        await browser.until("location.pathname == '/' && document.querySelector('.figures')")
        await browser.run("document.querySelector('#account button').click()")
        await browser.until("location.pathname == '/login'")


async def test_a_one_time_link_opens_the_dashboard(tmp_path: Path) -> None:
    """The cookie is for HTTPS alone, as with an https public_url; a browser sends it to this machine all the same."""
    ways_in = {"public_url": "https://phone.example.com", "secure": True}
    async with serve_dashboard(tmp_path, count=3, ways_in=ways_in) as served, open_browser() as browser:
        assert served.access.local is not None
        await browser.open(served.url + "/calls")
        await browser.until("location.pathname == '/login' && document.querySelector('code')")
        for width, scheme in ((1440, "light"), (390, "dark")):
            await browser.size(width)
            await browser.scheme(scheme)
            await browser.screenshot(SHOTS / f"link-{width}-{scheme}.png")
            assert await browser.violations() == []
        link = served.access.local.make_link(time.monotonic())
        # In the tab that shows the login page, and then once more.
        await browser.open(f"{served.url}/login#{link}")
        await browser.until("location.pathname == '/' && document.querySelector('.figures')")
        assert link not in await browser.run("return location.href + document.referrer")
        assert await browser.errors() == []
        await browser.open(f"{served.url}/login#{link}")
        await browser.until("document.querySelector('#message')?.textContent.includes('was used')")
        assert await browser.run("return location.hash") == ""


def test_the_graph_of_the_example_has_steps_and_edges() -> None:
    graph = LoadedProject(ROOT).graph().as_json()
    edges = {(edge["source"].rpartition("/")[2], edge["target"].rpartition("/")[2]) for edge in graph["edges"]}
    assert ("Welcome", "route_by_status") in edges
    assert ("route_by_status", "Anything else") in edges
    assert {step["kind"] for flow in graph["flows"] for step in flow["steps"]} == {"step", "function"}
