"""Audio of the Session API: LINEAR16, MULAW or ALAW at 8, 16 or 24 kHz in base64, and requests that carry it."""

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
"""Encoding -> bytes of a sample."""
_BY_NUMBER: Final = ("AUDIO_ENCODING_UNSPECIFIED", "LINEAR16", "MULAW", "ALAW")
RATES: Final = (8000, 16000, 24000)


@dataclass(frozen=True, slots=True)
class AudioForm:
    """The form of a client's audio in one direction."""

    encoding: str
    rate: int

    @classmethod
    def of(cls, config: Mapping[str, Any], name: str) -> AudioForm | None:
        """Read the form from a session's configuration; None where it has none. Raises `InputRefused`."""
        given = config.get(name)
        return cls.parse(given, name) if given else None

    @classmethod
    def parse(cls, given: Any, name: str) -> AudioForm:
        """Read an `inputAudioConfig` or `outputAudioConfig`. Raises `InputRefused`."""
        if not isinstance(given, Mapping):
            raise InputRefused(f"'{name}' should be an object")
        encoding = given.get("audioEncoding", given.get("audio_encoding"))
        rate = given.get("sampleRateHertz", given.get("sample_rate_hertz"))
        # JSON of protocol buffers may name an enumeration's value by its number.
        if isinstance(encoding, int) and 0 <= encoding < len(_BY_NUMBER):
            encoding = _BY_NUMBER[encoding]
        if encoding not in ENCODINGS or str(rate) not in map(str, RATES):
            known = f"audioEncoding {', '.join(ENCODINGS)}; sampleRateHertz {', '.join(map(str, RATES))}"
            raise InputRefused(f"'{name}' is not supported; choose {known}")
        return cls(str(encoding), int(str(rate)))


class AudioDecoder:
    """Turns a client's audio into 16-bit PCM at the call's rate, in pieces of any length."""

    def __init__(self, form: AudioForm) -> None:
        self._form = form
        self._decimator = Decimator(form.rate // SAMPLE_RATE) if form.rate > SAMPLE_RATE else None
        self._odd = b""
        """Half of a 16-bit sample that the last piece ended with."""

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


class AudioEncoder:
    """Turns 16-bit PCM at the call's rate into a client's audio as base64."""

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


def decode_base64(given: Any) -> bytes:
    """Return the bytes of an `audio` field.

    JSON of protocol buffers allows both alphabets of base64 and leaves padding out. Raises `InputRefused`.
    """
    if not isinstance(given, str):
        raise InputRefused("'audio' should be base64")
    text = given.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise InputRefused("'audio' is not base64") from None


class RequestSpeech:
    """The audio of one request, whose inputs are whole utterances and whose answers are spoken text by text."""

    def __init__(self, utterances: Utterances, project: CxProject, config: Mapping[str, Any]) -> None:
        """Raises `InputRefused` for a form of audio that is not supported."""
        self._utterances = utterances
        self._project = project
        self._input_form, self._output_form = (
            AudioForm.of(config, name) for name in ("inputAudioConfig", "outputAudioConfig")
        )

    async def transcribe(self, inputs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Put text in the place of audio; pieces that follow each other are one utterance.

        Raises `InputRefused` and `ProviderError`.
        """
        found: list[Mapping[str, Any]] = []
        audio = b""
        for given in inputs:
            if "audio" in given:
                audio += decode_base64(given["audio"])
                continue
            found += await self._recognise(audio)
            audio = b""
            found.append(given)
        return [*found, *await self._recognise(audio)]

    def speaker(self) -> Speak | None:
        """Return what speaks a text of the answer; None for a client that wants no audio."""
        if self._output_form is None:
            return None
        encoder = AudioEncoder(self._output_form)

        async def speak(said: Say) -> str:
            pcm = said.pcm if said.pcm is not None else await self._utterances.speak(self._project, said.text)
            return await asyncio.to_thread(encoder.feed, pcm)

        return speak

    async def _recognise(self, audio: bytes) -> list[Mapping[str, Any]]:
        if not audio:
            return []
        if self._input_form is None:
            raise InputRefused("audio is taken where the configuration has 'inputAudioConfig'")
        pcm = await asyncio.to_thread(AudioDecoder(self._input_form).feed, audio)
        return [{"text": await self._utterances.recognise(pcm)}]
