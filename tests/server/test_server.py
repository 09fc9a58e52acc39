"""The server process: who is let in, which project answers, and how it stops."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sqlite3
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from callagent.call_info import EndReason
from callagent.errors import UserError
from tests.end_to_end.scripted import MILL, scripts, talker, until
from tests.end_to_end.server_process import ServerProcess, serve

pytestmark = pytest.mark.end_to_end

FERRY = MILL.parent / "ferry"
THOUGHTS = [{"calls": [{"name": "weigh"}]}, {"text": "It is noted."}] * 3


def quick(folder: Path) -> dict[str, str]:
    return scripts(folder, ["weigh it"] * 3, THOUGHTS)


def configured(folder: Path, text: str) -> tuple[str, str]:
    (folder / "callagent.toml").write_text(text)
    return "--config", str(folder / "callagent.toml")


def invite(server: ServerProcess, user: str = "agent") -> str:
    """The final response to an INVITE without an offer, as text; acknowledged."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.settimeout(60)
        here = f"127.0.0.1:{peer.getsockname()[1]}"
        branch, call = f"z9hG4bK{uuid4().hex}", uuid4().hex

        def send(method: str, to_tag: str = "") -> None:
            lines = [
                f"{method} sip:{user}@{server.sip} SIP/2.0",
                f"Via: SIP/2.0/UDP {here};branch={branch}",
                f"From: <sip:+15550100@{here}>;tag=1",
                f"To: <sip:{user}@{server.sip}>{to_tag}",
                f"Call-ID: {call}",
                f"CSeq: 1 {method}",
                f"Contact: <sip:+15550100@{here}>",
                "Max-Forwards: 70",
                "Content-Length: 0",
            ]
            peer.sendto("\r\n".join([*lines, "", ""]).encode(), ("127.0.0.1", server.sip_port))

        send("INVITE")
        while True:
            response = peer.recv(65536).decode()
            if not response.startswith("SIP/2.0 1"):
                break
        to = next(line for line in response.split("\r\n") if line.startswith("To:"))
        send("ACK", ";tag=" + to.rpartition(";tag=")[2])
        return response


def status(port: int, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def exit_status(server: ServerProcess) -> int:
    return await asyncio.to_thread(server.process.wait, 60)


async def test_a_signal_lets_running_calls_finish_and_takes_no_new_ones(tmp_path: Path) -> None:
    with serve(tmp_path, "--http", "127.0.0.1:0", project=MILL, **quick(tmp_path)) as server:
        async with talker(server.sip) as caller:
            await caller.listen(1)
            assert (await asyncio.to_thread(status, server.http_port, "/ready"))[0] == 200
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: any(line["event"] == "draining" for line in server.log()), 60)
            response = await asyncio.to_thread(invite, server)
            assert response.startswith("SIP/2.0 503 ")
            assert "\r\nRetry-After: " in response
            assert (await asyncio.to_thread(status, server.http_port, "/ready"))[0] == 503
            assert (await asyncio.to_thread(status, server.http_port, "/health"))[0] == 200
            await caller.say()
            await caller.listen(2)
        assert await exit_status(server) == 0
        (record,) = server.records()
    assert (record["end_reason"], record["end_function"]) == ("caller_hangup", "done")
    assert record["turns"][1]["agent_response"] == "It is noted."


async def test_a_second_signal_ends_the_calls_with_their_end_functions(tmp_path: Path) -> None:
    with serve(tmp_path, project=MILL, **quick(tmp_path)) as server:
        async with talker(server.sip) as one, talker(server.sip, "+15550101") as other:
            await one.listen(1)
            await other.listen(1)
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: any(line["event"] == "draining" for line in server.log()), 60)
            server.process.send_signal(signal.SIGTERM)
            assert [await one.ended(), await other.ended()] == ["the server hung up"] * 2
        assert await exit_status(server) == 0
        records = server.records()
    assert [record["end_reason"] for record in records] == [EndReason.DRAIN.value] * 2
    assert [record["metrics"] for record in records] == [[{"name": "ENDED", "value": 0}]] * 2


async def test_one_call_more_than_the_limit_is_sent_elsewhere(tmp_path: Path) -> None:
    with serve(tmp_path, "--http", "127.0.0.1:0", project=MILL, LIMITS__CALLS="1", **quick(tmp_path)) as server:
        async with talker(server.sip) as caller:
            await caller.listen(1)
            response = await asyncio.to_thread(invite, server)
            assert response.startswith("SIP/2.0 503 ")
            assert "\r\nRetry-After: " in response
            with pytest.raises(UserError, match="503"):
                async with talker(server.sip, "+15550101"):
                    pass
        # The record is there a moment before the call's place is free.
        live = partial(status, server.http_port, "/metrics", **server.login)
        await until(lambda: "callagent_calls_live 0" in live()[1], 60)
        async with talker(server.sip, "+15550102") as caller:
            await caller.listen(1)
        assert len(await asyncio.to_thread(server.wait_for_records, 2)) == 2
        assert {"limit": "calls", "calls": 1}.items() <= next(
            line.items() for line in server.log() if line["event"] == "limit_reached"
        )


async def test_each_number_has_its_project_and_others_are_refused(tmp_path: Path) -> None:
    text = f"""
        [[numbers]]
        number = "100"
        project = {json.dumps(str(MILL))}
        [[numbers]]
        number = "3*"
        project = {json.dumps(str(FERRY))}
        environment = "live"
    """
    with serve(tmp_path, *configured(tmp_path, text), **quick(tmp_path)) as server:
        for user in ("100", "345"):
            async with talker(server.sip, user=user) as caller:
                await caller.listen(1)
        with pytest.raises(UserError, match="did not answer: 603"):
            async with talker(server.sip, user="200"):
                pass
        records = await asyncio.to_thread(server.wait_for_records, 2)
        assert [line["callee"] for line in server.log() if line["event"] == "number_not_routed"] == ["200"]
    assert [(record["environment"], record["to_number"]) for record in records] == [("sandbox", "100"), ("live", "345")]
    greetings = [record["turns"][0]["agent_response"] for record in records]
    assert greetings[0] == "This is the mill."
    assert "Ferries" in greetings[1]


async def test_a_handoff_that_leads_nowhere_brings_the_caller_back(tmp_path: Path) -> None:
    thoughts = [
        {"calls": [{"name": "person_wanted"}]},
        {"text": "The miller cannot come. What else?"},
        {"calls": [{"name": "weigh"}]},
        {"text": "It is noted."},
    ]
    with serve(tmp_path, project=MILL, **scripts(tmp_path, ["a person", "weigh it"], thoughts)) as server:
        async with talker(server.sip) as caller:
            await caller.listen(1)
            await caller.say()
            await caller.listen(2)
            await caller.say()
            await caller.listen(3)
        (record,) = await asyncio.to_thread(server.wait_for_records, 1)
    assert record["handoff_outcome"] == "refused"
    assert record["end_reason"] == "caller_hangup"
    assert record["state"]["sacks"] == 1
    assert [error["detail"] for error in record["errors"]] == [
        "handoff 'miller' is not a configured target; add [[targets]] name = \"miller\" with its uri to callagent.toml"
    ]


async def test_a_caller_whom_nobody_knows_gets_no_answer(tmp_path: Path) -> None:
    text = '[[sip.trunks]]\nname = "carrier"\nsources = ["192.0.2.0/24"]\n'
    arguments = configured(tmp_path, text)
    with serve(tmp_path, *arguments, project=MILL, **quick(tmp_path)) as server, pytest.raises(TimeoutError):
        await asyncio.to_thread(invite, server)


async def test_http_alone_serves_health_and_metrics(tmp_path: Path) -> None:
    with serve(tmp_path, "--http", "127.0.0.1:0", project=MILL, **quick(tmp_path)) as server:
        assert status(server.http_port, "/health")[0] == 200
        assert status(server.http_port, "/metrics")[0] == 401
        assert "callagent_calls_live 0" in status(server.http_port, "/metrics", **server.login)[1]
        assert status(server.http_port, "/twilio/voice", **server.login)[0] in (404, 405)


async def test_a_store_that_is_locked_for_a_while_delays_no_conversation(tmp_path: Path) -> None:
    with serve(tmp_path, project=MILL, **quick(tmp_path)) as server:
        with sqlite3.connect(server.store, isolation_level=None) as locker:
            locker.execute("BEGIN EXCLUSIVE")
            async with talker(server.sip) as caller:
                await caller.listen(1, 3)
                locker.execute("ROLLBACK")
        locker.close()
        (record,) = await asyncio.to_thread(server.wait_for_records, 1)
    assert record["end_function"] == "done"


async def test_one_number_has_so_many_calls_at_once_and_others_none_the_less(tmp_path: Path) -> None:
    settings = {"LIMITS__CALLER_CALLS": "1", **quick(tmp_path)}
    with serve(tmp_path, "--http", "127.0.0.1:0", project=MILL, **settings) as server:
        async with talker(server.sip, "+442079460000") as caller:
            await caller.listen(1)
            for _ in range(3):
                with pytest.raises(UserError, match="486"):
                    async with talker(server.sip, "+442079460000"):
                        pass
            async with talker(server.sip, "+442079460001") as other:
                await other.listen(1)
            async with talker(server.sip, "ann") as one, talker(server.sip, "ann") as two:
                await one.listen(1)
                await two.listen(1)
        text = (await asyncio.to_thread(partial(status, **server.login), server.http_port, "/metrics"))[1]
        assert 'callagent_limit_reached_total{limit="caller_calls"} 3' in text
        assert sum(line["event"] == "limit_reached" for line in server.log()) == 1


async def test_one_number_begins_so_many_calls_a_minute(tmp_path: Path) -> None:
    with serve(tmp_path, project=MILL, LIMITS__CALLER_CALLS_PER_MINUTE="1", **quick(tmp_path)) as server:
        async with talker(server.sip) as caller:
            await caller.listen(1)
        response = await asyncio.to_thread(invite, server)
    assert response.startswith("SIP/2.0 486 ")
    assert "\r\nRetry-After: 60" in response


async def test_a_call_that_has_used_its_tokens_ends_and_its_record_says_why(tmp_path: Path) -> None:
    with serve(tmp_path, "--http", "127.0.0.1:0", project=MILL, LIMITS__MODEL_TOKENS="1", **quick(tmp_path)) as server:
        async with talker(server.sip) as caller:
            await caller.listen(1)
            # The model asks for a function, and would be asked again with what that gave.
            await caller.say()
            await caller.ended()
        (record,) = await asyncio.to_thread(server.wait_for_records, 1)
        text = (await asyncio.to_thread(partial(status, **server.login), server.http_port, "/metrics"))[1]
    assert [one["limit"] for one in record["limits_reached"]] == ["model_tokens"]
    assert record["end_reason"] == "error"
    assert 'callagent_limit_reached_total{limit="model_tokens"} 1' in text
