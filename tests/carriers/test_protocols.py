"""What the shared modules of carriers promise to a dialect that is not like the ones that exist."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import ClientSession, WSMsgType, web

import callagent.carriers
from callagent.carriers.media import CarrierMedia
from callagent.carriers.protocol import (
    NORMAL_CLOSURE,
    PCMU,
    AudioFormat,
    HeardLedger,
    MediaReceived,
    Message,
    StreamEvent,
)
from callagent.carriers.stream import MediaSocket
from callagent.carriers.table import CARRIERS
from tests.web.entry import access_of, listening

FRAME = bytes(320)
FOLDER = Path(callagent.carriers.__file__).parent


class BinaryDialect:
    """Audio as binary messages, commands as text."""

    inbound: AudioFormat = PCMU
    outbound: AudioFormat = PCMU

    def __init__(self, ledger: HeardLedger) -> None:
        self.ledger = ledger

    def receive_message(self, message: Message) -> Sequence[StreamEvent]:
        return (MediaReceived(message),) if isinstance(message, bytes) else ()

    def encode_media(self, payload: bytes) -> Sequence[Message]:
        return ("next", payload)

    def encode_mark(self, name: str) -> Sequence[Message]:
        raise AssertionError("this stream has no marks")

    def encode_clear(self) -> Sequence[Message]:
        return ("clear",)


class Playing:
    """Media over a stream without marks, at a time that the test sets."""

    def __init__(self, ledger: HeardLedger) -> None:
        self.now = 100.0
        self.sent: list[Message] = []
        self.media = CarrierMedia(lambda: self.now)
        self.media.start(lambda pcm, now: None, lambda: FRAME)
        self.media.attach(BinaryDialect(ledger), self.sent.append)

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.media.tick(self.now, 0.0)


def test_every_message_of_a_verb_is_sent_in_its_order() -> None:
    playing = Playing(HeardLedger.CLOCK)
    playing.tick()
    assert playing.sent == ["next", b"\xff" * 160] * 5
    assert playing.media.statistics().codec == "PCMU/8000"


def test_without_marks_the_clock_counts_what_is_heard() -> None:
    playing = Playing(HeardLedger.CLOCK)
    playing.tick()
    assert playing.media.unheard() == pytest.approx(0.1)
    playing.now += 0.03
    assert playing.media.unheard() == pytest.approx(0.07)
    assert playing.media.clear() == pytest.approx(0.07)
    assert (playing.sent[-1], playing.media.unheard()) == ("clear", 0.0)


def test_reports_of_the_position_correct_the_clock() -> None:
    playing = Playing(HeardLedger.POSITION)
    playing.tick()
    playing.now += 0.08
    playing.media.report_position(0.02, playing.now)
    assert playing.media.unheard() == pytest.approx(0.08)
    assert playing.media.clear() == pytest.approx(0.08)
    playing.tick()
    # The carrier's position counts what it plays: the 0.08 s that were dropped are not in it.
    playing.media.report_position(0.04, playing.now)
    assert playing.media.unheard() == pytest.approx(0.08)
    playing.media.report_position(9.0, playing.now)
    assert playing.media.unheard() == 0.0


async def test_a_socket_carries_text_and_binary_messages() -> None:
    heard: list[Message | None] = []

    async def serve(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        assert request.transport is not None
        socket = MediaSocket(ws, request.transport)
        async with asyncio.TaskGroup() as group:
            group.create_task(socket.write())
            async for message in socket.messages():
                heard.append(message)
                assert message is not None
                socket.send(message)
            socket.close(NORMAL_CLOSURE)
        return ws

    app = web.Application()
    app.router.add_get("/", serve)
    async with listening(app, access_of()) as url, ClientSession() as session, session.ws_connect(url) as client:
        await client.send_str("start")
        await client.send_bytes(b"\x00\xff")
        answers = [await client.receive(), await client.receive()]
    assert [(answer.type, answer.data) for answer in answers] == [
        (WSMsgType.TEXT, "start"),
        (WSMsgType.BINARY, b"\x00\xff"),
    ]
    assert heard == ["start", b"\x00\xff"]


@pytest.mark.parametrize("module", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_shared_module_names_no_carrier(module: Path) -> None:
    text = module.read_text(encoding="utf-8").lower()
    if module.stem != "table":
        assert not [name for name in ("twilio", "twiml", "browser") if name in text]


def test_every_folder_of_a_carrier_is_in_the_table() -> None:
    folders = {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    assert folders == set(CARRIERS)
