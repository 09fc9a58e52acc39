"""The API places a call to a real softphone, somebody listens in and takes it over; the record has its SIP messages."""

from __future__ import annotations

import asyncio
import base64
import json
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.end_to_end.baresip import BARESIP, Baresip, baresip
from tests.end_to_end.scripted import WORDS, scripts
from tests.end_to_end.server_process import ServerProcess, serve

SECONDS = 180
"""Longer than any test: a softphone hangs up at the end of its file."""

pytestmark = [pytest.mark.end_to_end, pytest.mark.skipif(BARESIP is None, reason="baresip is not installed")]


async def control(server: ServerProcess) -> dict[str, Any]:
    url = f"http://127.0.0.1:{server.http_port}"
    async with aiohttp.ClientSession(headers=server.login) as session:
        refused = await session.post(url + "/api/calls", json={"target": "nobody"})
        assert refused.status == 409
        placed = await session.post(
            url + "/api/calls", json={"target": "customer", "from_number": "1000", "metadata": {"X-Order": "84276"}}
        )
        assert placed.status == 202, await placed.text()
        call_id = (await placed.json())["id"]
        async with asyncio.timeout(60):
            while True:
                live = (await (await session.get(f"{url}/api/live/{call_id}")).json()).get("state")
                if live == "talking":
                    break
                await asyncio.sleep(0.1)
        async with session.ws_connect(f"{url}/api/live/{call_id}/audio") as listener, asyncio.timeout(30):
            heard = bytearray()
            # Something other than silence (0xFF in μ-law) from the agent, who greets.
            while not any(abs(code - 0x7F) > 8 and code != 0xFF for code in heard[-160:]):
                heard += await listener.receive_bytes()
        taken = await session.post(f"{url}/api/calls/{call_id}/takeover", json={"target": "support"})
        assert taken.status == 202
    (record,) = await asyncio.to_thread(server.wait_for_records, 1)
    assert record["id"] == call_id
    return record


async def give_away_a_browser(server: ServerProcess) -> dict[str, Any]:
    """A page's call is taken over to a softphone; audio crosses; the page hangs up."""
    url = f"http://127.0.0.1:{server.http_port}"
    silence = json.dumps({"event": "media", "payload": base64.b64encode(b"\xff" * 160).decode()})
    async with aiohttp.ClientSession(headers=server.login) as session, session.ws_connect(f"{url}/api/phone") as page:

        async def speak() -> None:
            while True:
                await page.send_str(silence)
                await asyncio.sleep(0.02)

        speaking = asyncio.create_task(speak())
        try:
            async with asyncio.timeout(60):
                call_id = await answered(page)
                while (await (await session.get(f"{url}/api/live/{call_id}")).json()).get("state") != "talking":
                    await asyncio.sleep(0.1)
                taken = await session.post(f"{url}/api/calls/{call_id}/takeover", json={"target": "support"})
                assert taken.status == 202
                while (await (await session.get(f"{url}/api/live/{call_id}")).json()).get("state") != "bridged":
                    await asyncio.sleep(0.1)
                # The page hears the person: something other than silence.
                heard = b"\xff"
                while not any(abs(code - 0x7F) > 8 and code != 0xFF for code in heard):
                    message = await page.receive_json()
                    heard = base64.b64decode(message.get("payload", ""))
        finally:
            speaking.cancel()
        await page.send_str('{"event":"stop"}')
    (record,) = await asyncio.to_thread(server.wait_for_records, 1)
    return record


async def answered(page: aiohttp.ClientWebSocketResponse) -> str:
    while (message := await page.receive_json())["event"] != "answered":
        pass
    return str(message["call"])


def test_a_call_from_the_browser_is_bridged_to_a_person(tmp_path: Path) -> None:
    with (
        softphone(tmp_path / "support") as support,
        serve(
            tmp_path,
            *("--http", "127.0.0.1:0", "--config", settings(tmp_path, support, support)),
            **scripts(tmp_path, [], []),
        ) as server,
    ):
        record = asyncio.run(give_away_a_browser(server))
        assert any(event.get("type") == "CALL_ESTABLISHED" for event in support.events), "nobody was called"
    assert record["wire"] == "browser"
    assert record["transfers"][0]["status"] == "succeeded"
    assert (record["handoff_destination"], record["handoff_outcome"]) == ("support", "succeeded")


@contextmanager
def softphone(folder: Path) -> Iterator[Baresip]:
    """Says something, then nothing."""
    folder.mkdir()
    with wave.open(str(WORDS)) as words, wave.open(str(folder / "microphone.wav"), "wb") as microphone:
        microphone.setparams(words.getparams())
        sound = words.readframes(words.getnframes())
        microphone.writeframes(sound + bytes(SECONDS * 2 * words.getframerate()))
    with baresip(folder / "phone", folder / "microphone.wav") as phone:
        yield phone


def settings(folder: Path, customer: Baresip, support: Baresip) -> str:
    path = folder / "callagent.toml"
    path.write_text(
        "".join(
            f'[[targets]]\nname = "{name}"\nuri = "sip:user@127.0.0.1:{phone.sip_port}"\n'
            for name, phone in (("customer", customer), ("support", support))
        )
    )
    return str(path)


def test_a_placed_call_is_listened_to_and_taken_over(tmp_path: Path) -> None:
    script = scripts(tmp_path, [], [])
    # The greeting is still being said when somebody listens in.
    (tmp_path / "voice.yaml").write_text(json.dumps({"seconds_per_character": 0.5}))
    with (
        softphone(tmp_path / "customer") as customer,
        softphone(tmp_path / "support") as support,
        serve(
            tmp_path,
            "--http",
            "127.0.0.1:0",
            "--config",
            settings(tmp_path, customer, support),
            **script,
        ) as server,
    ):
        record = asyncio.run(control(server))
        assert any(event.get("type") == "CALL_ESTABLISHED" for event in support.events), "nobody was called"
    assert (record["direction"], record["end_reason"]) == ("outbound", "handoff")
    assert record["transfers"][0]["status"] == "succeeded"
    assert (record["handoff_destination"], record["handoff_reason"]) == ("support", "taken over")
    lines = [(one["sent"], one["line"].split()[0]) for one in record["signalling"]]
    assert lines[0] == (True, "INVITE")
    assert (True, "ACK") in lines
    assert (True, "REFER") in lines
    assert (False, "NOTIFY") in lines
    assert (True, "BYE") in lines or (False, "BYE") in lines
    moments = [one["at"] for one in record["signalling"]]
    assert moments == sorted(moments)
