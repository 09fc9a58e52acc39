"""What the core and an inference process say to each other: length-prefixed MessagePack on a socket pair.

The core sends one `Load…`, answered by `Ready` or `Failed`; then `Transcribe`, `Speak` or `Judge`, each answered once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import msgspec

MAX_MESSAGE_BYTES = 16 << 20
"""Bytes of one message: four minutes of 24 kHz audio would fit."""


class _Message(msgspec.Struct, tag=True, array_like=True):
    pass


class LoadRecognizer(_Message):
    whisper_dir: str
    cache: str
    threads: int
    beam: int


class LoadVoice(_Message):
    pass


class LoadTurnModel(_Message):
    pass


class Ready(_Message):
    pass


class Failed(_Message):
    """The answer to a request that could not be served, or to a load (`number` 0)."""

    number: int
    reason: str
    user: bool = False
    """Somebody has to change a file or a setting; trying again does not help."""


class Transcribe(_Message):
    number: int
    pcm: bytes
    final: bool
    language: str = "en"
    expected: str = ""


class Transcribed(_Message):
    number: int
    texts: tuple[str, ...] = ()
    confidence: float | None = None


class Speak(_Message):
    """One sentence."""

    number: int
    text: str
    voice: str = ""
    speed: float = 1.0


class Spoken(_Message):
    number: int
    pcm: bytes
    words: tuple[tuple[str, float, float], ...] = ()


class Judge(_Message):
    """Has who spoke last in this finished?"""

    number: int
    pcm: bytes


class Judged(_Message):
    number: int
    probability: float


Load = LoadRecognizer | LoadVoice | LoadTurnModel
Request = Transcribe | Speak | Judge
Answer = Transcribed | Spoken | Judged | Failed
Message = Load | Request | Ready | Answer

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


async def read(reader: asyncio.StreamReader) -> Message:
    """The next message. Raises `EOFError` at the end, `ValueError` for what is none."""
    size = int.from_bytes(await reader.readexactly(4), "little")
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"message of {size} bytes is not valid")
    message: Message = _decoder.decode(await reader.readexactly(size))
    return message


def read_all(connection: socket.socket) -> Iterator[Message]:
    """Messages until the other side closes; blocks."""
    with connection.makefile("rb") as stream:
        while len(prefix := stream.read(4)) == 4:
            yield _decoder.decode(stream.read(int.from_bytes(prefix, "little")))
