"""The three ways in which an app gives a caller away, on the wire, with SIPp as the caller and as the person called."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agents.cx.support import write_app
from tests.end_to_end.baresip import START_SECONDS, free_port, is_open
from tests.end_to_end.scripted import scripts, until
from tests.end_to_end.server_process import ServerProcess, serve

SCENARIOS = Path(__file__).parents[2] / "end_to_end" / "sipp"
UUI = f"User-to-User: {b'k1=v1;k2=v2'.hex()};encoding=hex;purpose=Goog-Session-Param"
EVIL = "<sip:evil@192.0.2.9>"
STEERING = {"r": EVIL, "v": "SIP/2.0/UDP 192.0.2.9", "i": "192.0.2.9", "t": EVIL}
HANDOFF = {"x-headers": {"X-Topic": "bill", **STEERING}, "uui-headers": [{"k1": "v1"}, {"k2": "v2"}]}
NUMBER = {"phone_number": "+15550199", "use_originating_trunk": True}

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed"),
]


def escalating(root: Path, **variables: Any) -> Path:
    """An app that gives every caller away at once, as its variables say."""
    code = f"""
        def before_model_callback(callback_context, llm_request):
            callback_context.state.update({variables!r})
            return LlmResponse.from_parts([Part.from_text("Hello."), Part.from_end_session(reason="r", escalated=True)])
    """
    return write_app(root, callbacks={"before_model": code})


@asynccontextmanager
async def sipp(folder: Path, scenario: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """SIPp for one call; what it sends and hears is in `SCENARIO.log`."""
    log = folder / f"{scenario}.log"
    process = await asyncio.create_subprocess_exec(
        "sipp", "-sf", str(SCENARIOS / f"{scenario}.xml"), "-m", "1", "-s", "agent", "-i", "127.0.0.1",
        "-mi", "127.0.0.1", "-nostdin", "-timeout", "40", "-timeout_error", "-trace_msg", "-message_file", str(log),
        *arguments,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
        async with asyncio.timeout(60):
            _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def message(folder: Path, scenario: str, start: str) -> list[str]:
    """The lines of the first message that begins so."""
    lines = (folder / f"{scenario}.log").read_text(errors="replace").splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith(start))
    end = next((index for index in range(place, len(lines)) if not lines[index].strip()), len(lines))
    return [line.strip() for line in lines[place:end]]


def without_steering(lines: list[str]) -> bool:
    """Whether the message has one header of each kind that the project tried to add, and nothing of its values."""
    names = [line.partition(":")[0].strip().lower() for line in lines[1:]]
    once = all(names.count(full) <= 1 for full in ("refer-to", "via", "call-id", "to"))
    return once and not set(STEERING) & set(names) and "192.0.2.9" not in "".join(lines)


async def record_of(server: ServerProcess) -> dict[str, Any]:
    return (await asyncio.to_thread(server.wait_for_records, 1))[0]


async def test_with_headers_alone_the_call_is_ended_by_us_and_they_ride_on_the_bye(tmp_path: Path) -> None:
    app = escalating(tmp_path, LIVE_AGENT_HANDOFF=HANDOFF, ESCALATION_MESSAGE="One moment.")
    with serve(tmp_path, project=app, **scripts(tmp_path, [], [])) as server:
        async with sipp(tmp_path, "hung_up", server.sip):
            pass
        record = await record_of(server)
    bye = message(tmp_path, "hung_up", "BYE ")
    assert "X-Topic: bill" in bye
    assert without_steering(bye)
    (left_out,) = [error["detail"] for error in record["errors"]]
    assert "r, v, i, t" in left_out
    assert "sip.transfer_headers" in left_out
    assert UUI in bye
    assert record["turns"][0]["agent_response"] == "Hello. One moment."
    assert (record["end_reason"], record["handoff_destination"]) == ("handoff", "live_agent")


async def test_with_a_number_and_sip_refer_the_caller_is_referred(tmp_path: Path) -> None:
    app = escalating(tmp_path, PHONE_GATEWAY_TRANSFER=NUMBER, LIVE_AGENT_HANDOFF={**HANDOFF, "sip-refer": True})
    config = tmp_path / "callagent.toml"
    config.write_text('[[targets]]\nprefix = "+15550199"\n')
    with serve(tmp_path, "--config", str(config), project=app, **scripts(tmp_path, [], [])) as server:
        async with sipp(tmp_path, "transferred", server.sip):
            pass
        record = await record_of(server)
    refer = message(tmp_path, "transferred", "REFER ")
    assert any(line.startswith("Refer-To: ") and "sip:+15550199@" in line for line in refer)
    assert {"X-Topic: bill", UUI} <= set(refer)
    assert without_steering(refer)
    assert [(one["method"], one["status"]) for one in record["transfers"]] == [("refer", "succeeded")]


async def test_with_a_number_alone_we_call_it_and_stay_in_between(tmp_path: Path) -> None:
    app = escalating(tmp_path, PHONE_GATEWAY_TRANSFER=NUMBER, LIVE_AGENT_HANDOFF=HANDOFF)
    config, port = tmp_path / "callagent.toml", free_port(socket.SOCK_DGRAM)
    config.write_text(f'[[targets]]\nname = "+15550199"\nuri = "sip:+15550199@127.0.0.1:{port}"\n')
    with serve(tmp_path, "--config", str(config), project=app, **scripts(tmp_path, [], [])) as server:
        async with sipp(tmp_path, "desk_leaves", "-p", str(port)):
            await until(lambda: is_open(socket.SOCK_DGRAM, port), START_SECONDS)
            async with sipp(tmp_path, "hung_up", server.sip):
                pass
        record = await record_of(server)
    invite = message(tmp_path, "desk_leaves", "INVITE ")
    assert invite[0].startswith("INVITE sip:+15550199@127.0.0.1")
    assert {"X-Topic: bill", UUI} <= set(invite)
    assert without_steering(invite)
    assert message(tmp_path, "hung_up", "BYE ")
    assert [(one["method"], one["status"]) for one in record["transfers"]] == [("invite", "succeeded")]
    assert (record["end_reason"], record["handoff_outcome"]) == ("handoff", "succeeded")
