"""Audio as the Session API writes it: LINEAR16, MULAW or ALAW at 8, 16 or 24 kHz, in base64."""

from __future__ import annotations

import asyncio
import audioop
import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from callagent.agents import Say
from callagent.agents.cx import CxProject, InputRefused, Speak
from callagent.audio import SAMPLE_RATE, Decimator
from callagent.web import Utterances

ENCODINGS: Final = {"LINEAR16": 2, "MULAW": 1, "ALAW": 1}
"""Bytes of a sample."""
_BY_NUMBER: Final = ("AUDIO_ENCODING_UNSPECIFIED", "LINEAR16", "MULAW", "ALAW")
RATES: Final = (8000, 16000, 24000)


@dataclass(frozen=True, slots=True)
class AudioForm:
    encoding: str
    rate: int

    @classmethod
    def of(cls, config: Mapping[str, Any], name: str) -> AudioForm | None:
        """As `parse`; None: a configuration says nothing of it."""
        given = config.get(name)
        return cls.parse(given, name) if given else None

    @classmethod
    def parse(cls, given: Any, name: str) -> AudioForm:
        """From `inputAudioConfig` or `outputAudioConfig`. Raises `InputRefused`."""
        if not isinstance(given, Mapping):
            raise InputRefused(f"'{name}' is no object")
        encoding = given.get("audioEncoding", given.get("audio_encoding"))
        rate = given.get("sampleRateHertz", given.get("sample_rate_hertz"))
        if isinstance(encoding, int) and 0 <= encoding < len(_BY_NUMBER):
            encoding = _BY_NUMBER[encoding]
        if encoding not in ENCODINGS or str(rate) not in map(str, RATES):
            known = f"audioEncoding {', '.join(ENCODINGS)}; sampleRateHertz {', '.join(map(str, RATES))}"
            raise InputRefused(f"'{name}' is not taken; {known} are")
        return cls(str(encoding), int(str(rate)))


class Inward:
    """From a client's form to 16-bit PCM at the call's rate, in pieces of any length."""

    def __init__(self, form: AudioForm) -> None:
        self._form = form
        self._decimator = Decimator(form.rate // SAMPLE_RATE) if form.rate > SAMPLE_RATE else None
        self._odd = b""

    def feed(self, payload: bytes) -> bytes:
        pcm = self._linear(payload)
        return self._decimator.feed(pcm) if self._decimator else pcm

    def _linear(self, payload: bytes) -> bytes:
        match self._form.encoding:
            case "MULAW":
                return audioop.ulaw2lin(payload, 2)
            case "ALAW":
                return audioop.alaw2lin(payload, 2)
        payload = self._odd + payload
        whole = len(payload) - len(payload) % 2
        self._odd = payload[whole:]
        return payload[:whole]


class Outward:
    """From 16-bit PCM at the call's rate to a client's form, as base64."""

    def __init__(self, form: AudioForm) -> None:
        self._form = form
        self._state: Any = None

    def feed(self, pcm: bytes) -> str:
        if self._form.rate != SAMPLE_RATE:
            pcm, self._state = audioop.ratecv(pcm, 2, 1, SAMPLE_RATE, self._form.rate, self._state)
        match self._form.encoding:
            case "MULAW":
                pcm = audioop.lin2ulaw(pcm, 2)
            case "ALAW":
                pcm = audioop.lin2alaw(pcm, 2)
        return base64.b64encode(pcm).decode("ascii")


def decoded(given: Any) -> bytes:
    """The bytes of an `audio` field: base64 of either alphabet, as JSON of protocol buffers. Raises `InputRefused`."""
    if not isinstance(given, str):
        raise InputRefused("'audio' should be base64")
    text = given.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise InputRefused("'audio' is not base64") from None


class SessionSpeech:
    """Of one request."""

    def __init__(self, utterances: Utterances, project: CxProject, config: Mapping[str, Any]) -> None:
        """Raises `InputRefused` for audio of another form than is taken."""
        self._utterances = utterances
        self._project = project
        self._heard, self._said = (AudioForm.of(config, name) for name in ("inputAudioConfig", "outputAudioConfig"))

    async def as_words(self, inputs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Audio as text; pieces that follow each other are one utterance. Raises `InputRefused`, `ProviderError`."""
        found: list[Mapping[str, Any]] = []
        audio = b""
        for given in inputs:
            if "audio" in given:
                audio += decoded(given["audio"])
                continue
            found += await self._recognised(audio)
            audio = b""
            found.append(given)
        return [*found, *await self._recognised(audio)]

    def speaker(self) -> Speak | None:
        """None: the client wants no audio."""
        if self._said is None:
            return None
        outward = Outward(self._said)

        async def speak(said: Say) -> str:
            pcm = said.pcm if said.pcm is not None else await self._utterances.speak(self._project, said.text)
            return await asyncio.to_thread(outward.feed, pcm)

        return speak

    async def _recognised(self, audio: bytes) -> list[Mapping[str, Any]]:
        if not audio:
            return []
        if self._heard is None:
            raise InputRefused("audio is taken where the configuration has 'inputAudioConfig'")
        pcm = await asyncio.to_thread(Inward(self._heard).feed, audio)
        return [{"text": await self._utterances.recognise(pcm)}]
