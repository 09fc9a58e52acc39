"""The trips of a transcript and of an INVITE through the package: which files a reader has to follow.

`python -m tests.trips` prints both: the files in the order in which they are first entered, with the functions of each
that ran. `tests/test_trips.py` holds their number to a bound.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import callagent
from callagent.agents.flows import load_flow_project, project_runtime
from callagent.call import Call, CallServices, CallSettings
from callagent.config import SipSettings
from callagent.models import Delta, Message, ModelSettings, Tool
from callagent.server.listeners import Signalling
from callagent.speech.protocol import RecognizerSettings, Transcript
from callagent.speech.scripted import ScriptedVoice
from callagent.testing.in_process import InProcessPool
from callagent.testing.virtual_time import run
from callagent.turns import CallerInput, TurnManager, TurnSettings
from tests.agents.flows.support import flow_config, function, step, write_project
from tests.call.test_call import MemoryStore
from tests.fakes import FakeLeg, LoudnessActivity

PACKAGE = Path(callagent.__file__).parent
NOT_COUNTED = "testing/"
"""Stands in for a worker process: what runs there is not part of the trip."""
PROJECT = {
    "agent_settings/rules.txt": "Answer the caller.",
    "functions/start_function.py": function("start_function", 'conv.goto_flow("orders")'),
    "flows/orders/flow_config.yaml": flow_config("orders", "take"),
    "flows/orders/steps/take.yaml": step("take", "Ask for the order. Then call {{ft:note}}."),
    "flows/orders/functions/note.py": function("note", "return size", ", size: int", flow=True),
}


class Trip:
    """Records which functions of the package run between `begin` and `end`, on this thread and those begun since."""

    def __init__(self) -> None:
        self.functions: dict[str, set[CodeType]] = {}
        """The functions entered, by file below the package, in the order of first entry."""

    def begin(self) -> None:
        # Threads that run already, as the one that paces RTP, keep their profile function: they are not counted.
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def files(self) -> list[str]:
        return list(self.functions)

    def __str__(self) -> str:
        lines = [f"{len(self.functions)} files, {sum(map(len, self.functions.values()))} functions"]
        for file, codes in self.functions.items():
            lines.append(f"  {file}: {', '.join(sorted({code.co_name for code in codes}))}")
        return "\n".join(lines)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            name = path.relative_to(PACKAGE).as_posix()
            if not name.startswith(NOT_COUNTED):
                self.functions.setdefault(name, set()).add(frame.f_code)


class HandRecognizer:
    """Gives one final transcript once the utterance is finished, as a provider's socket does: from the event loop."""

    def __init__(self, text: str, trip: Trip) -> None:
        self._text = text
        self._trip = trip
        self._utterances = 0

    async def open(self, on_transcript: Callable[[Transcript], None]) -> HandRecognizer:
        self._on_transcript = on_transcript
        return self

    def begin(self, settings: RecognizerSettings) -> None:
        self._utterances += 1

    def feed(self, pcm: bytes) -> None: ...

    def finish(self) -> None:
        # Between two frames of 20 ms: the media's path is another trip.
        asyncio.get_running_loop().call_later(0.105, self._deliver)

    def close(self) -> None: ...

    def _deliver(self) -> None:
        self._trip.begin()
        self._on_transcript(Transcript(self._text, final=True, utterance=self._utterances))


class AskedModel:
    """Ends the trip when the caller's words have arrived in a request."""

    def __init__(self, text: str, trip: Trip) -> None:
        self._text = text
        self._trip = trip

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        if self._text in str(list(messages)):
            self._trip.end()
        yield Delta(text="Thank you.")

    async def close(self) -> None: ...


def transcript_trip(folder: Path) -> Trip:
    """Follow a final transcript from the recogniser's callback to the model's request, in a call of a small project."""
    trip = Trip()
    text = "two coffees please"

    async def call() -> None:
        leg = FakeLeg()
        leg.media.speech = [(2.0, 3.0)]
        asyncio.get_running_loop().call_later(8.0, leg.hangs_up)

        def make_turn_manager(emit: Any) -> TurnManager:
            heard = CallerInput(HandRecognizer(text, trip), LoudnessActivity())
            return TurnManager(heard, ScriptedVoice(), emit, TurnSettings())

        path = write_project(folder, PROJECT)
        project = load_flow_project(path, AskedModel(text, trip), InProcessPool(project_runtime(path)))
        services = CallServices(MemoryStore(), lambda handoff: None)  # type: ignore[arg-type, return-value]
        await Call(leg, project, make_turn_manager, services, CallSettings()).run()

    try:
        run(call())
    finally:
        trip.end()
    return trip


def invite_trip() -> Trip:
    """Follow an INVITE from its datagram to the leg that the server is given."""
    trip = Trip()

    async def server() -> None:
        taken = asyncio.Event()

        def take(leg: Any) -> None:
            trip.end()
            taken.set()

        async with AsyncExitStack() as stack:
            settings = SipSettings.model_validate({"listen": "127.0.0.1:0"})
            signalling = await Signalling.open(settings, take, lambda: None, stack)
            _, host, port = signalling.addresses[0]
            peer = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            peer.bind(("127.0.0.1", 0))
            # The listener's own tasks begin first.
            await asyncio.sleep(0)
            trip.begin()
            peer.sendto(_invite(f"127.0.0.1:{peer.getsockname()[1]}", f"{host}:{port}"), (host, port))
            async with asyncio.timeout(60):
                await taken.wait()

    try:
        asyncio.run(server())
    finally:
        trip.end()
    return trip


def _invite(caller: str, server: str) -> bytes:
    host, _, _ = caller.rpartition(":")
    offer = f"v=0\r\no=- 1 1 IN IP4 {host}\r\ns=-\r\nc=IN IP4 {host}\r\nt=0 0\r\nm=audio 40002 RTP/AVP 0 101\r\n"
    offer += "a=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-16\r\na=sendrecv\r\n"
    lines = [
        f"INVITE sip:agent@{server} SIP/2.0",
        f"Via: SIP/2.0/UDP {caller};branch=z9hG4bKtrip",
        f"From: <sip:+15550100@{caller}>;tag=1",
        f"To: <sip:agent@{server}>",
        "Call-ID: trip",
        "CSeq: 1 INVITE",
        f"Contact: <sip:+15550100@{caller}>",
        "Max-Forwards: 70",
        "Content-Type: application/sdp",
        f"Content-Length: {len(offer)}",
    ]
    return "\r\n".join([*lines, "", offer]).encode()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.stdout.write(f"A final transcript to the model's request: {transcript_trip(Path(temporary))}\n")
    sys.stdout.write(f"An INVITE to its leg: {invite_trip()}\n")
