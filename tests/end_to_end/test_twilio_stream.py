"""A server process on Twilio's wire: a conversation with a transfer, and everybody who is not let in."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from callagent.phone.lines import StreamPhone
from tests.carriers.twilio.fake_twilio import ACCOUNT_SID, AUTH_TOKEN, CALL_SID, fake_twilio
from tests.carriers.twilio.twilio_client import FORM, post, signature, stream, token
from tests.end_to_end.baresip import free_port
from tests.end_to_end.scripted import MILL, Talker, scripts, until
from tests.end_to_end.server_process import ServerProcess, serve
from tests.own_time import own_time

pytestmark = pytest.mark.end_to_end

THOUGHTS = [
    {"calls": [{"name": "weigh"}]},
    {"text": "One sack."},
    {"calls": [{"name": "person_wanted"}]},
    {"text": "The miller does not answer. Anything else?"},
]
ROGUE = "CA" + "0" * 32


@contextmanager
def twilio_server(folder: Path, api_url: str = "http://127.0.0.1:9") -> Iterator[tuple[ServerProcess, str]]:
    """A server and its public URL."""
    config = folder / "callagent.toml"
    config.write_text('[[targets]]\nname = "miller"\nuri = "+15550123"\n')
    port = free_port(socket.SOCK_STREAM)
    url = f"http://127.0.0.1:{port}"
    settings = {
        **scripts(folder, ["weigh it", "a person please", "no"], THOUGHTS),
        "HTTP__PUBLIC_URL": url,
        "TWILIO__ACCOUNT_SID": ACCOUNT_SID,
        "TWILIO__AUTH_TOKEN": AUTH_TOKEN,
        "TWILIO__API_BASE_URL": api_url,
    }
    with serve(folder, "--config", str(config), "--http", f"127.0.0.1:{port}", project=MILL, **settings) as server:
        yield server, url


@asynccontextmanager
async def stream_talker(url: str) -> AsyncIterator[Talker]:
    fields = {"CallSid": CALL_SID, "AccountSid": ACCOUNT_SID}
    with own_time() as clock:
        async with StreamPhone.dial(url + "/twilio/voice", AUTH_TOKEN, "+15550100", "+15550199", fields) as phone:
            yield Talker(phone, clock)


async def report(url: str, **fields: str) -> int:
    """What Twilio posts about a transfer."""
    return (await post(url + "/twilio/transfer-status", {"AccountSid": ACCOUNT_SID, **fields}))[0]


async def test_a_conversation_ends_with_a_transfer(tmp_path: Path) -> None:
    async with fake_twilio() as twilio:
        with twilio_server(tmp_path, twilio.url) as (server, url):
            async with stream_talker(url) as caller:
                await caller.listen(1)
                await caller.say()
                await caller.listen(2)
                await caller.say()
                await until(lambda: twilio.requests, 15, lambda: server.errors.read_text())
                assert "+15550123" in twilio.requests[0][1]["Twiml"]
                child = {"ParentCallSid": CALL_SID, "CallSid": ROGUE, "CallStatus": "in-progress"}
                assert await report(url, **child) == 200
                assert "closed" in await caller.ended()
            record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert (record["wire"], record["peer_call_id"]) == ("twilio", CALL_SID)
    assert (record["from_number"], record["to_number"]) == ("+15550100", "+15550199")
    assert [turn["agent_response"] for turn in record["turns"]] == [
        "This is the mill.",
        "One sack.",
        "I will fetch the miller.",
    ]
    assert (record["end_reason"], record["handoff_outcome"]) == ("handoff", "succeeded")
    assert {"name": "ENDED", "value": 1} in record["metrics"]
    assert AUTH_TOKEN not in server.errors.read_text()


async def test_keys_reach_the_agent_and_the_caller_hangs_up(tmp_path: Path) -> None:
    with twilio_server(tmp_path) as (server, url):
        async with stream_talker(url) as caller:
            await caller.listen(1)
            await caller.line.send_digits("5#")
            await caller.say()
            await caller.listen(2)
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert [one["digit"] for one in record["digits"]] == ["5", "#"]
    assert (record["end_reason"], record["end_function"]) == ("caller_hangup", "done")


async def test_who_is_not_let_in_hears_nothing(tmp_path: Path) -> None:
    with twilio_server(tmp_path) as (server, url):
        assert (await post(url + "/twilio/voice", FORM, "nonsense"))[0] == 403
        assert (await post(url + "/twilio/voice", FORM, signature(url + "/twilio/voice", FORM, "other token")))[
            0
        ] == 403
        with pytest.raises(InvalidStatus) as refused:
            async with stream(url, "nonsense"):
                pass
        assert refused.value.response.status_code == 403
        good = await token(url)
        for given, call_sid in ((None, CALL_SID), ("wrong", CALL_SID), (good, ROGUE)):
            async with stream(url) as call:
                await call.start(given, call_sid)
                code, said = await call.refused()
                assert (code, said) == (1008, [])
        # The wrong call's attempt has used the token up.
        fresh = await token(url)
        async with stream(url) as call:
            await call.start(fresh)
            assert (await call.receive())["event"] == "media"
            async with stream(url) as replay:
                await replay.start(fresh)
                assert await replay.refused() == (1008, [])
            await call.send("stop", stop={})
        records = await asyncio.to_thread(server.wait_for_records, 1)
    assert len(records) == 1, "nobody who was refused has become a call"
