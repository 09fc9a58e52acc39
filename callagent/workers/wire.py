"""What core and worker processes tell each other: the arguments of a process, and frames on a socket pair.

A frame is a 4-byte length, then a msgpack array `[kind, number, payload]`.
Core to worker: `open` (context and checkpoint), `run` (a request), `reply` (`{"value"}` or `{"error"}` to an ask).
Worker to core: `message`, `ask`, `answer` (to a run), `failed` (to a run; the payload is a text).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from callagent.workers.landlock import Grant
from callagent.workers.settings import WorkerSettings

PROCESS_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from callagent.workers.zygote import main; main(sys.argv[2], sys.argv[3])"
)
"""`python -P -c PROCESS_PROGRAM <folder of callagent> zygote|worker <ProcessArguments as JSON>`"""


class ProcessArguments(msgspec.Struct, frozen=True):
    """What a zygote, or a worker that cannot be forked, is told at its start."""

    runtime: str
    project: str
    folder: str
    """What the project's code may read."""
    settings: WorkerSettings
    private: str
    """The folder that it may write to: a zygote's holds those of its calls."""
    grants: tuple[Grant, ...]
    """What a worker may read and start; empty in a zygote, which finds it out before it is confined."""
    parent: int
    control: int
    """The descriptor of the control socket; in a worker that is an interpreter of its own, the one to the core."""


FRAME_LIMIT = 16 * 1024 * 1024
_HEADER = 4

Frame = tuple[str, int, Any]


class FrameError(ValueError):
    """The other side sent, or was to be sent, what is no frame."""


_decoder = msgspec.msgpack.Decoder(Frame)
_encoder = msgspec.msgpack.Encoder(enc_hook=str)


def encode(kind: str, number: int, payload: Any) -> bytes:
    """Raises `FrameError` when the frame is over the limit or holds what msgpack cannot carry."""
    try:
        body = _encoder.encode((kind, number, payload))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FrameError(f"{kind} cannot be sent: {error}") from None
    if len(body) > FRAME_LIMIT:
        raise FrameError(f"{kind} of {len(body)} bytes is over the limit of {FRAME_LIMIT}")
    return len(body).to_bytes(_HEADER, "big") + body


class FrameReader:
    """Cuts a byte stream into frames; holds no more than one frame and one read."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. Raises `FrameError`; the stream is of no use after it."""
        self._buffer += data
        while len(self._buffer) >= _HEADER:
            end = _HEADER + int.from_bytes(self._buffer[:_HEADER], "big")
            if end > _HEADER + FRAME_LIMIT:
                raise FrameError(f"frame of {end - _HEADER} bytes is over the limit of {FRAME_LIMIT}")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEADER:end])
            del self._buffer[:end]
            yield self._decode(body)

    def _decode(self, body: bytes) -> Frame:
        try:
            frame: Frame = _decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"no frame: {error}") from None
        return frame
