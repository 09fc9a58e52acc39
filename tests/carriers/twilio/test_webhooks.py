"""Twilio's webhooks and media streams over real sockets: who gets in, and what happens to who does."""

from __future__ import annotations

import asyncio
import audioop
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from callagent.call_info import EndReason
from callagent.carriers import calls as carrier_calls
from callagent.carriers import leg as carrier_leg
from callagent.carriers import stream as media_streams
from callagent.carriers.calls import TokenTable
from callagent.carriers.leg import CarrierLeg
from callagent.carriers.stream import MediaSocket
from callagent.legs.leg import (
    CallerHungUp,
    DigitPressed,
    LegEvent,
    LegFailed,
    Media,
    TransferOutcome,
    TransferStatus,
    TransferTarget,
)
from tests.carriers.twilio.fake_twilio import ACCOUNT_SID, CALL_SID, FakeTwilio, fake_twilio
from tests.carriers.twilio.twilio_client import FORM, post, signature, stream, token, token_in
from tests.web.server import Server, serve, until

ULAW = bytes(range(160))
PCM = audioop.ulaw2lin(ULAW, 2)
OTHER_SID = "CA" + "0" * 32


class Recorder:
    """Takes every leg at once, says `to_say`, keeps what comes."""

    def __init__(self, server: Server) -> None:
        self.heard: list[bytes] = []
        self.to_say: list[bytes] = []
        self.events: list[LegEvent] = []
        self.media: Media | None = None
        self.sink: Callable[[bytes], None] = self.heard.append
        server.on_leg = self.take

    def take(self, leg: CarrierLeg) -> None:
        leg.listen(self.events.append)
        # A carrier leg answers at once: its coroutine has nothing to wait for.
        answering = leg.answer()
        with pytest.raises(StopIteration) as answered:
            answering.send(None)
        self.media = answered.value.value
        assert self.media
        self.media.start(lambda pcm, now: self.sink(pcm), lambda: self.to_say.pop(0) if self.to_say else None)


async def test_a_conversation() -> None:
    async with serve() as server:
        agent = Recorder(server)
        agent.to_say = [PCM] * 6
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            said = [await call.receive() for _ in range(8)]
            assert [message["event"] for message in said] == ["media"] * 5 + ["mark", "media", "mark"]
            assert {message["streamSid"] for message in said} == {"MZ1"}
            assert agent.media
            assert agent.media.unheard() > 0
            for message in said:
                if message["event"] == "mark":
                    await call.send("mark", mark=message["mark"])
            await call.media(ULAW[:100])
            await call.media(ULAW[100:] + ULAW)
            await call.send("dtmf", dtmf={"track": "inbound_track", "digit": "7"})
            await until(lambda: agent.events)
            assert agent.media.unheard() == 0.0
            assert agent.heard == [PCM, PCM]
            await call.send("stop", stop={"accountSid": ACCOUNT_SID, "callSid": CALL_SID})
            assert (await call.refused())[0] == 1000
    assert agent.events == [DigitPressed("7"), CallerHungUp(EndReason.CALLER_HANGUP)]
    info = server.legs[0].info
    assert (info.caller, info.callee, info.wire, info.peer_call_id) == ("+15550100", "+15550199", "twilio", CALL_SID)


async def test_the_webhook_tells_headers_and_hides_withheld_numbers() -> None:
    form = {**FORM, "From": "sip:Anonymous@x.invalid", "To": "sip:+1555;p=1@x", "SipHeader_X-Booking": "7"}
    async with serve() as server:
        Recorder(server)
        given = await token(server.url, form)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
    info = server.legs[0].info
    assert (info.caller, info.callee, dict(info.headers)) == (None, "+1555", {"X-Booking": "7"})


@pytest.mark.parametrize("signed", ["", "nonsense", signature("ws://evil.example.com/twilio/media", {})])
async def test_an_upgrade_without_our_signature_is_not_answered(signed: str) -> None:
    async with serve() as server:
        given = await token(server.url)
        with pytest.raises(InvalidStatus) as refused:
            async with stream(server.url, signed) as call:
                await call.start(given)
        assert refused.value.response.status_code == 403
        assert server.legs == []


async def test_a_signature_for_another_host_is_refused_whatever_the_host_header_says() -> None:
    async with serve(public_path="/elsewhere") as server:
        url = server.url + "/twilio/voice"
        assert (await post(url, FORM))[0] == 403
        assert (await post(url, FORM, signature(server.url + "/elsewhere/twilio/voice", FORM)))[0] == 200


@pytest.mark.parametrize(
    "changed",
    [{**FORM, "From": "+1900"}, {**FORM, "Extra": "1"}, {"CallSid": CALL_SID}, {**FORM, "CallSid": OTHER_SID}],
)
async def test_a_webhook_that_was_changed_is_refused(changed: dict[str, str]) -> None:
    async with serve() as server:
        url = server.url + "/twilio/voice"
        assert (await post(url, changed, signature(url, FORM)))[0] == 403
        assert (await post(server.url + "/twilio/transfer-status", changed, signature(url, FORM)))[0] == 403


async def test_webhooks_of_another_account_or_call_form_are_refused() -> None:
    async with serve() as server:
        for form in ({**FORM, "AccountSid": "AC" + "9" * 32}, {**FORM, "CallSid": "a/b"}, {"To": "+1"}):
            assert (await post(server.url + "/twilio/voice", form))[0] == 403
        assert (await post(server.url + "/twilio/transfer-status", {"CallStatus": "in-progress"}))[0] == 403


async def refused_start(server: Server, given: str | None, call_sid: str = CALL_SID) -> None:
    """The stream is refused; no frame reached anybody and nothing was said to it."""
    before = len(server.legs)
    async with stream(server.url) as call:
        await call.start(given, call_sid)
        with suppress(ConnectionClosed):
            await call.media(ULAW)
        assert await call.refused() == (1008, [])
    assert len(server.legs) == before


async def test_no_token_and_a_wrong_one_are_refused_before_any_audio() -> None:
    async with serve() as server:
        agent = Recorder(server)
        agent.to_say = [PCM] * 10
        await token(server.url)
        await refused_start(server, None)
        await refused_start(server, "")
        await refused_start(server, "wrong")
        assert agent.heard == []


async def test_another_calls_token_is_refused_and_spent() -> None:
    async with serve() as server:
        agent = Recorder(server)
        given = await token(server.url)
        await refused_start(server, given, OTHER_SID)
        await refused_start(server, given)
        assert agent.heard == []


async def test_a_replayed_token_is_refused_while_the_call_lives_and_after() -> None:
    async with serve() as server:
        agent = Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            await refused_start(server, given)
            await call.send("stop")
            await until(lambda: agent.events)
        await refused_start(server, given)
        assert agent.heard == []


async def test_a_second_unused_token_opens_nothing_beside_or_after_the_call() -> None:
    async with serve() as server:
        agent = Recorder(server)
        first, second, third = [await token(server.url) for _ in range(3)]
        async with stream(server.url) as call:
            await call.start(first)
            await until(lambda: server.legs)
            await refused_start(server, second)
            await call.send("stop")
            await until(lambda: agent.events)
        await refused_start(server, third)
        # And the webhook of a call that is over, replayed, says goodbye.
        assert "Hangup" in (await post(server.url + "/twilio/voice", FORM))[1]


async def test_a_stream_of_another_account_is_refused() -> None:
    async with serve() as server:
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given, account_sid="AC" + "9" * 32)
            assert await call.refused() == (1008, [])
        assert server.legs == []


@pytest.mark.parametrize(
    ("message", "code"),
    [('{"event":"media","media":{"payload":""}}', 1002), ("{", 1002), (b"\x00", 1002), ("x" * 70000, 1009)],
)
async def test_what_is_no_dialect_ends_the_socket(message: str | bytes, code: int) -> None:
    async with serve() as server:
        async with stream(server.url) as call:
            await call.socket.send(message)
            assert await call.refused() == (code, [])
        agent = Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            await call.socket.send(message if code == 1009 else "{")
            assert (await call.refused())[0] == code
            await until(lambda: agent.events)


async def test_a_stream_that_does_not_start_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_streams, "START_SECONDS", 0.2)
    async with serve() as server, stream(server.url) as call:
        await call.send("connected")
        assert await call.refused() == (1008, [])


async def test_sockets_that_have_not_started_are_counted_per_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_streams, "MAX_STRANGERS", 1)
    async with serve() as server:
        Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            with pytest.raises(InvalidStatus) as refused:
                async with stream(server.url):
                    pass
            assert refused.value.response.status_code == 429
            await call.start(given)
            await until(lambda: server.legs)
            async with stream(server.url):
                pass


async def test_a_flood_of_messages_ends_the_stream() -> None:
    async with serve() as server:
        agent = Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            with suppress(ConnectionClosed):
                for _ in range(30000):
                    await call.send("heartbeat")
            await until(lambda: agent.events)
        assert isinstance(agent.events[0], LegFailed)


async def test_no_compression_is_agreed_on() -> None:
    async with serve() as server, stream(server.url) as call:
        assert "Sec-WebSocket-Extensions" not in call.socket.response.headers  # type: ignore[union-attr]


async def test_pings_are_answered() -> None:
    async with serve() as server, stream(server.url) as call:
        async with asyncio.timeout(60):
            await (await call.socket.ping())


async def test_a_sink_that_raises_ends_its_own_call_only() -> None:
    async with serve() as server:
        agent = Recorder(server)

        def broken(pcm: bytes) -> None:
            raise RuntimeError("sink")

        agent.sink = broken
        first = await token(server.url)
        second = await token(server.url, {**FORM, "CallSid": OTHER_SID})
        async with stream(server.url) as one, stream(server.url) as two:
            await one.start(first)
            await until(lambda: len(server.legs) == 1)
            await two.start(second, OTHER_SID)
            await until(lambda: len(server.legs) == 2)
            await one.media(ULAW)
            assert (await one.refused())[0] == 1011
            assert [isinstance(event, LegFailed) for event in agent.events] == [True]
            await two.send("dtmf", dtmf={"digit": "1"})
            await until(lambda: len(agent.events) == 2)


async def test_a_cut_socket_is_a_hang_up_within_two_seconds() -> None:
    async with serve() as server:
        agent = Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            call.socket.transport.abort()
            await until(lambda: agent.events, 4)
        assert agent.events == [CallerHungUp(EndReason.CALLER_HANGUP)]


async def test_a_cut_stream_is_taken_up_again_when_the_carrier_comes_back() -> None:
    async with serve() as server:
        agent = Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            call.socket.transport.abort()
            _, twiml = await post(server.url + "/twilio/voice", {**FORM, "CallStatus": "in-progress"})
        async with stream(server.url) as call:
            await call.start(token_in(twiml))
            await call.media(ULAW)
            await until(lambda: agent.heard)
            agent.to_say = [PCM]
            assert (await call.receive())["event"] == "media"
        assert len(server.legs) == 1


async def test_a_reader_that_does_not_read_is_closed_and_others_go_on() -> None:
    async with serve() as server:
        agent = Recorder(server)
        first = await token(server.url)
        second = await token(server.url, {**FORM, "CallSid": OTHER_SID})
        async with stream(server.url) as deaf, stream(server.url) as other:
            await deaf.start(first)
            await until(lambda: len(server.legs) == 1)
            deaf.socket.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.socket.transport.pause_reading()
            link = server.legs[0]._link
            assert link
            text = "x" * 10000
            for _ in range(600):
                link.send(text)
                await asyncio.sleep(0)
                if server.legs[0]._link is None:
                    break
            await until(lambda: agent.events, 5)
            assert agent.events == [CallerHungUp(EndReason.CALLER_HANGUP)]
            await other.start(second, OTHER_SID)
            await until(lambda: len(server.legs) == 2)


async def test_hanging_up_on_a_reader_that_does_not_read_ends_in_time() -> None:
    async with serve() as server:
        Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as deaf:
            await deaf.start(given)
            await until(lambda: server.legs)
            deaf.socket.transport.pause_reading()
            link = server.legs[0]._link
            assert isinstance(link, MediaSocket)
            for _ in range(400):
                # Until the kernel takes no more and the writer waits.
                if link._queued < 100000:
                    link.send("x" * 50000)
                await asyncio.sleep(0.002)
            await server.legs[0].hang_up(EndReason.AGENT_HANGUP)
            await until(link._transport.is_closing, 8)


async def test_hanging_up_ends_the_call_at_the_carrier_and_the_stream() -> None:
    async with fake_twilio() as api, serve(api.url) as server:
        agent = Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            await server.legs[0].hang_up(EndReason.AGENT_HANGUP)
            await server.legs[0].hang_up(EndReason.AGENT_HANGUP)
            assert (await call.refused())[0] == 1000
        assert [form for _, form in api.requests] == [{"Status": "completed"}]
        assert agent.events == []


async def test_hanging_up_without_the_api_ends_the_stream_and_the_redirect_says_goodbye() -> None:
    async with serve() as server:
        Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            await server.legs[0].hang_up(EndReason.AGENT_HANGUP)
            assert (await call.refused())[0] == 1000
        assert "Hangup" in (await post(server.url + "/twilio/voice", FORM))[1]


async def report(server: Server, **fields: str) -> str:
    status, twiml = await post(server.url + "/twilio/transfer-status", {"AccountSid": ACCOUNT_SID, **fields})
    assert status == 200
    return twiml


async def test_a_transfer_that_is_answered_takes_the_caller_over() -> None:
    async with fake_twilio() as api, serve(api.url) as server:
        agent = Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            target = TransferTarget("desk", "sip:desk@pbx.example.com", headers={"X-Reason": "billing"})
            transfer = asyncio.create_task(server.legs[0].transfer(target))
            await until(lambda: api.requests)
            await call.send("stop")
        root = ElementTree.fromstring(api.requests[0][1]["Twiml"])
        assert root.findtext("Dial/Sip") == "sip:desk@pbx.example.com?X-Reason=billing"
        await report(server, CallSid=OTHER_SID, ParentCallSid=CALL_SID, CallStatus="ringing")
        await report(server, CallSid=OTHER_SID, ParentCallSid=CALL_SID, CallStatus="in-progress")
        assert (await transfer).status is TransferStatus.SUCCEEDED
        await server.legs[0].hang_up(EndReason.HANDOFF)
        assert "Hangup" in await report(server, CallSid=CALL_SID, DialCallStatus="completed", CallStatus="in-progress")
        # The caller talks to the desk: nobody ends that call.
        assert len(api.requests) == 1
        assert agent.events == []


@pytest.mark.parametrize(
    ("dialled", "status"),
    [("busy", TransferStatus.REFUSED), ("no-answer", TransferStatus.NO_ANSWER), ("failed", TransferStatus.FAILED)],
)
async def test_a_transfer_that_nobody_answers_brings_the_caller_back(dialled: str, status: TransferStatus) -> None:
    async with fake_twilio() as api, serve(api.url) as server:
        agent = Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            transfer = asyncio.create_task(server.legs[0].transfer(TransferTarget("desk", "+442071838750")))
            await until(lambda: api.requests)
            await call.send("stop")
        twiml = await report(server, CallSid=CALL_SID, DialCallStatus=dialled, CallStatus="in-progress")
        async with stream(server.url) as call:
            await call.start(token_in(twiml))
            outcome = await transfer
            assert (outcome.status, outcome.detail) == (status, dialled)
            await call.media(ULAW)
            await until(lambda: agent.heard)
        assert len(server.legs) == 1


async def test_a_caller_who_gives_up_during_a_transfer_is_gone() -> None:
    async with fake_twilio() as api, serve(api.url) as server:
        agent = Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            transfer = asyncio.create_task(server.legs[0].transfer(TransferTarget("desk", "+442071838750")))
            await until(lambda: api.requests)
            assert "Hangup" in await report(
                server, CallSid=CALL_SID, DialCallStatus="no-answer", CallStatus="completed"
            )
            assert (await transfer).status is TransferStatus.CALLER_GONE
        assert agent.events == [CallerHungUp(EndReason.CALLER_HANGUP)]


async def test_a_transfer_that_twilio_does_not_take_leaves_the_stream_as_it_is() -> None:
    async with fake_twilio() as api, serve(api.url) as server:
        agent = Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            api.status, api.code = 500, 20500
            outcome = await server.legs[0].transfer(TransferTarget("desk", "+442071838750"))
            assert (outcome.status, "500" in outcome.detail) == (TransferStatus.FAILED, True)
            outcome = await server.legs[0].transfer(TransferTarget("desk", "not a target"))
            assert outcome.status is TransferStatus.FAILED
            await call.media(ULAW)
            await until(lambda: agent.heard)
            api.status, api.code = 404, 20404
            outcome = await server.legs[0].transfer(TransferTarget("desk", "+442071838750"))
            assert outcome.status is TransferStatus.CALLER_GONE
            assert agent.events == [CallerHungUp(EndReason.CALLER_HANGUP)]
            outcome = await server.legs[0].transfer(TransferTarget("desk", "+442071838750"))
            assert outcome.status is TransferStatus.CALLER_GONE


@asynccontextmanager
async def transferring(
    target: TransferTarget, **form: str
) -> AsyncIterator[tuple[Server, FakeTwilio, asyncio.Task[TransferOutcome]]]:
    """A transfer that the carrier has been asked for."""
    async with fake_twilio() as api, serve(api.url) as server:
        given = token_in((await post(server.url + "/twilio/voice", {**FORM, **form}))[1])
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            transfer = asyncio.create_task(server.legs[0].transfer(target))
            await until(lambda: api.requests)
            await call.send("stop")
        yield server, api, transfer


async def greeting(server: Server, **fields: str) -> str:
    form = {"AccountSid": ACCOUNT_SID, "CallSid": OTHER_SID, "ParentCallSid": CALL_SID, **fields}
    return (await post(server.url + "/twilio/greeting", form))[1]


CONFIRMED = TransferTarget("desk", "+442071838750", "invite", whisper="A caller.", confirm="1", caller="+15550199")


async def test_the_person_hears_who_calls_and_takes_the_call_by_a_key() -> None:
    async with transferring(CONFIRMED) as (server, api, transfer):
        number = ElementTree.fromstring(api.requests[0][1]["Twiml"]).find("Dial/Number")
        assert number is not None
        assert number.get("url") == server.url + "/twilio/greeting"
        assert ElementTree.fromstring(await greeting(server)).findtext("Gather/Say") == "A caller."
        assert not transfer.done()
        assert "Hangup" not in await greeting(server, Digits="1")
        assert ((await transfer).status, (await transfer).detail) == (TransferStatus.SUCCEEDED, "confirmed")
        # Nobody else gets words or a place in the call.
        assert "Hangup" in await greeting(server, Digits="1")
        assert "Hangup" in await greeting(server, ParentCallSid=OTHER_SID)


async def test_a_machine_that_answers_does_not_get_the_caller() -> None:
    async with transferring(CONFIRMED) as (server, _, transfer):
        await greeting(server)
        assert "Hangup" in await greeting(server, Digits="2")
        twiml = await report(server, CallSid=CALL_SID, DialCallStatus="completed", CallStatus="in-progress")
        async with stream(server.url) as call:
            await call.start(token_in(twiml))
            outcome = await transfer
        assert (outcome.status, outcome.detail) == (TransferStatus.NO_ANSWER, "not confirmed")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"ReferCallStatus": "completed", "ReferSipResponseCode": "202"}, TransferStatus.SUCCEEDED),
        ({"ReferCallStatus": "busy", "NotifySipResponseCode": "486"}, TransferStatus.REFUSED),
        ({"ReferSipResponseCode": "405"}, TransferStatus.FAILED),
    ],
)
async def test_callers_on_sip_are_referred(fields: dict[str, str], status: TransferStatus) -> None:
    target = TransferTarget("desk", "sip:desk@pbx.example.com")
    async with transferring(target, From="sip:ann@pbx.example.com") as (server, api, transfer):
        assert ElementTree.fromstring(api.requests[0][1]["Twiml"]).findtext("Refer/Sip") == target.uri
        twiml = await report(server, CallSid=CALL_SID, CallStatus="in-progress", **fields)
        if status is not TransferStatus.SUCCEEDED:
            async with stream(server.url) as call:
                await call.start(token_in(twiml))
                assert (await transfer).status is status
        assert (await transfer).status is status


MEETING = TransferTarget("desk", "+442071838750", "attended")


async def invited(server: Server, status: str) -> None:
    form = {"AccountSid": ACCOUNT_SID, "CallSid": OTHER_SID, "CallStatus": status}
    assert (await post(f"{server.url}/twilio/transfer-status?call={CALL_SID}", form))[0] == 200


async def test_both_meet_in_a_conference() -> None:
    async with transferring(MEETING) as (server, api, transfer):
        await until(lambda: len(api.requests) == 2)
        room = ElementTree.fromstring(api.requests[0][1]["Twiml"]).findtext("Dial/Conference")
        path, form = api.requests[1]
        assert path.endswith(f"/Conferences/{room}/Participants.json")
        assert (form["To"], form["From"]) == ("+442071838750", FORM["To"])
        await invited(server, "in-progress")
        assert (await transfer).status is TransferStatus.SUCCEEDED


@pytest.mark.parametrize("status", ["no-answer", "busy", "failed", "canceled"])
async def test_who_does_not_come_to_the_conference_gives_the_caller_back(status: str) -> None:
    async with transferring(MEETING) as (server, api, transfer):
        await until(lambda: len(api.requests) == 2)
        await invited(server, status)
        await until(lambda: len(api.requests) == 3)
        async with stream(server.url) as call:
            await call.start(token_in(api.requests[2][1]["Twiml"]))
            outcome = await transfer
        assert outcome.status not in (TransferStatus.SUCCEEDED, TransferStatus.CALLER_GONE)


async def test_the_end_of_an_unknown_dial_hangs_up() -> None:
    async with serve() as server:
        assert "Hangup" in await report(server, CallSid=CALL_SID, DialCallStatus="busy", CallStatus="in-progress")


async def test_a_caller_with_too_many_calls_hears_busy() -> None:
    async with serve() as server:
        server.accepts = False
        assert await post(server.url + "/twilio/voice", FORM) == (
            200,
            '<?xml version="1.0" encoding="UTF-8"?><Response><Reject reason="busy"/></Response>',
        )
        server.accepts = True
        assert "<Stream" in (await post(server.url + "/twilio/voice", FORM))[1]


async def test_limits_and_draining_refuse_new_calls_only() -> None:
    async with serve() as server:
        agent = Recorder(server)
        given = await token(server.url)
        server.admits = False
        status, twiml = await post(server.url + "/twilio/voice", {**FORM, "CallSid": OTHER_SID})
        assert (status, "Reject" in twiml) == (200, True)
        server.drains = True
        assert (await post(server.url + "/twilio/voice", {**FORM, "CallSid": OTHER_SID}))[0] == 503
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            await call.media(ULAW)
            await until(lambda: agent.heard)


async def test_the_end_of_the_server_ends_what_is_left() -> None:
    async with serve() as server:
        agent = Recorder(server)
        given = await token(server.url)
        connected = asyncio.Event()

        async def caller() -> int | None:
            async with stream(server.url) as call:
                await call.start(given)
                connected.set()
                return (await call.refused())[0]

        task = asyncio.create_task(caller())
        await connected.wait()
        await until(lambda: server.legs)
    assert await task in (1000, 1001)
    assert [event.reason for event in agent.events if isinstance(event, LegFailed)] == [EndReason.DRAIN]


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/json", "{}", 415),
        ("application/x-www-form-urlencoded", "From=1&From=2", 400),
        ("application/x-www-form-urlencoded", b"From=\xff", 400),
        ("application/x-www-form-urlencoded", "From=" + "1" * 70000, 413),
    ],
)
async def test_bodies_that_are_no_webhook(content_type: str, body: str | bytes, status: int) -> None:
    import aiohttp

    async with serve() as server, aiohttp.ClientSession() as session:
        url = server.url + "/twilio/voice"
        async with session.post(url, data=body, headers={"Content-Type": content_type}) as response:
            assert response.status == status


@pytest.mark.parametrize("charset", ["punycode", "unheard-of"])
async def test_the_charset_that_a_webhook_claims_is_not_used(charset: str) -> None:
    import aiohttp

    async with serve() as server, aiohttp.ClientSession() as session:
        url = server.url + "/twilio/voice"
        content_type = f"application/x-www-form-urlencoded; charset={charset}"
        headers = {"Content-Type": content_type, "X-Twilio-Signature": signature(url, FORM)}
        async with session.post(url, data=urlencode(FORM), headers=headers) as response:
            assert response.status == 200


async def test_our_ping_is_answered_and_counts_as_life() -> None:
    async with serve() as server:
        Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            leg = server.legs[0]
            heard_at = leg._heard_at
            assert leg._link
            leg._link.ping()
            await until(lambda: leg._heard_at > heard_at)


async def test_a_transfer_nobody_reports_on_counts_as_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier_leg, "report_seconds", lambda target: 0.3)
    async with fake_twilio() as api, serve(api.url) as server:
        agent = Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            outcome = await server.legs[0].transfer(TransferTarget("desk", "+442071838750"))
            assert outcome.status is TransferStatus.SUCCEEDED
            assert (await call.refused())[0] == 1000
        assert agent.events == []


async def test_hanging_up_during_a_transfer_ends_both() -> None:
    async with fake_twilio() as api, serve(api.url) as server:
        Recorder(server)
        given = await token(server.url)
        async with stream(server.url) as call:
            await call.start(given)
            await until(lambda: server.legs)
            transfer = asyncio.create_task(server.legs[0].transfer(TransferTarget("desk", "+442071838750")))
            await until(lambda: api.requests)
            await server.legs[0].hang_up(EndReason.MAX_DURATION)
            assert (await transfer).status is TransferStatus.CALLER_GONE
            assert api.requests[-1][1] == {"Status": "completed"}


async def test_streams_that_never_come_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier_calls, "TokenTable", lambda: TokenTable(capacity=1))
    async with serve() as server:
        await token(server.url)
        status, twiml = await post(server.url + "/twilio/voice", {**FORM, "CallSid": OTHER_SID})
        assert (status, "Reject" in twiml) == (200, True)


async def test_a_signed_text_message_that_says_stop_is_heeded() -> None:
    async with serve() as server:
        url, form = server.url + "/twilio/sms", {**FORM, "Body": "STOP"}
        opted_out = server.external.opt_outs
        assert (await post(url, form, "forged"))[0] == 403
        assert FORM["From"] not in opted_out
        assert await post(url, form) == (200, "<Response/>")
        assert FORM["From"] in opted_out
        assert (await post(url, {**FORM, "Body": "start"}))[0] == 200
        assert FORM["From"] not in opted_out
