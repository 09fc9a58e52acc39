"""A request of the Session API with audio: whole utterances in, each text of the answer as audio too."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from callagent.agents import Say
from callagent.agents.cx import CxProject, InputRefused, Speak
from callagent.web.hooks import Utterances
from callagent.web.session_audio import AudioForm, Inward, Outward, decoded


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
