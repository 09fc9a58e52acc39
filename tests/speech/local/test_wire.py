"""Messages arrive as they were sent, however the bytes are cut."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest

from callagent.speech.local import wire

MESSAGES: list[wire.Message] = [
    wire.LoadRecognizer("dir", "/cache", 2, 5),
    wire.LoadVoice(),
    wire.Ready(),
    wire.Failed(3, "no such voice"),
    wire.Transcribe(4, bytes(range(256)) * 999, True, "en", "5 5 5"),
    wire.Transcribed(4, ("one", "two"), 0.5),
    wire.Speak(5, "Grüß Gott", "heart", 1.2),
    wire.Spoken(5, b"\x00\x01", (("Grüß", 0.0, 0.5),)),
]


async def test_the_core_reads_what_was_written_byte_by_byte() -> None:
    reader = asyncio.StreamReader()
    for message in MESSAGES:
        for byte in wire.encode(message)[:8000]:
            reader.feed_data(bytes([byte]))
        reader.feed_data(wire.encode(message)[8000:])
    reader.feed_eof()
    assert [await wire.read(reader) for _ in MESSAGES] == MESSAGES
    with pytest.raises(EOFError):
        await wire.read(reader)


def test_the_process_reads_until_the_core_closes() -> None:
    ours, theirs = socket.socketpair()
    small = [message for message in MESSAGES if len(wire.encode(message)) < 1000]
    with theirs:
        with ours:
            for message in small:
                ours.sendall(wire.encode(message))
            ours.sendall(b"\x09")
        assert list(wire.read_all(theirs)) == small


async def test_what_is_no_message_is_refused() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data((wire.MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(ValueError, match="is not valid"):
        await wire.read(reader)
    reader = asyncio.StreamReader()
    reader.feed_data(b"\x01\x00\x00\x00\xc1")
    with pytest.raises(msgspec.DecodeError):
        await wire.read(reader)
