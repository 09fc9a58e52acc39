"""What an app's code does to the running turn beside what the tree knows: marked words, how the turn is to end."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from callagent.agents.actions import Action, DigitSettings, Listen, ListenSettings, MetricWritten, Say
from callagent.agents.cx.engine.telephony import as_bool
from callagent.agents.cx.engine.turn_spans import Spans
from callagent.agents.cx.format import Recordings
from callagent.agents.protocol import MetricWriter
from callagent.agents.tree import ActionQueue, Ending

_CUSTOMIZED = "application/json+agentResponse"
_AUDIO = "application/json+audio"
_PAYLOAD = "application/json"
_MAX_PAYLOADS = 100
ENDPOINTING_MODES = {"short": 1.0, "mid": 3.0, "long": 5.0}
"""Seconds of silence after which an entry on the keys is done."""
_FIRST_DIGIT = 10.0
"""Seconds until the first key."""


class Stage:
    """One per call; opened for each turn."""

    def __init__(self, write_metric: MetricWriter, recordings: Recordings) -> None:
        self._recordings = recordings
        self._played: dict[str, bytes] = {}
        """Recordings of this turn by the words that stand for them."""
        self.metrics: list[dict[str, Any]] = []
        self.spans = Spans()
        self._write_metric = write_metric
        self._outbox: ActionQueue | None = None
        self._decide: Callable[[Ending], None] | None = None
        self._uninterruptible: set[str] = set()
        self._cancellable: set[str] = set()
        self._payloads: list[Any] = []
        self.end_arguments: dict[str, Any] = {}
        """What `end_session` was told: its parameters, why, and whether a person goes on."""

    def open(self, outbox: ActionQueue, decide: Callable[[Ending], None]) -> None:
        self._outbox, self._decide = outbox, decide
        self._uninterruptible.clear()
        self._cancellable.clear()
        self._played.clear()
        self.spans.begin()

    def decide(self, ending: Ending) -> None:
        if self._decide is not None:
            self._decide(ending)

    async def say(self, text: str, *, interruptible: bool = True) -> None:
        if self._outbox is not None and text.strip():
            await self._outbox.put(self.marked(Say(text.strip(), interruptible)))

    async def write(self, name: str, value: Any) -> None:
        """A metric of the call."""
        self.metrics.append({"name": name, "value": value})
        await self._write_metric(name, value)
        if self._outbox is not None:
            await self._outbox.put(MetricWritten(name, value))

    def marked(self, action: Action) -> Action:
        """Words of a response that the caller may not interrupt are marked so; recordings take the place of words."""
        if not isinstance(action, Say):
            return action
        interruptible = action.interruptible and action.text not in self._uninterruptible
        cancellable = action.text in self._cancellable
        return Say(action.text, interruptible, pcm=self._played.get(action.text), cancellable=cancellable)

    def spoken(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """A content as the tree says it: customized responses become texts, what only a screen shows is left out."""
        kept, silent = [], False
        for part in content.get("parts") or ():
            blob = part.get("inline_data")
            if not blob:
                kept.append(part)
                continue
            if blob.get("mime_type") == _AUDIO and (played := self._play(_decoded(blob) or {})):
                kept.append({"text": played})
                continue
            data = _decoded(blob) if blob.get("mime_type") == _CUSTOMIZED else None
            if blob.get("mime_type") == _PAYLOAD:
                self._put_payload(_json(blob))
            if data is None:
                silent = True
                continue
            text = str(data.get("content") or "").strip()
            self._customize(text, data)
            if text:
                kept.append({"text": text})
        if silent and not kept:
            self.decide(Listen())
        return {**content, "parts": kept}

    def _play(self, data: Mapping[str, Any]) -> str:
        """The words that stand for a recording in the history; empty: it cannot be played."""
        uri = str(data.get("audioUri") or "")
        pcm = self._recordings.pcm(uri)
        if pcm is None:
            return ""
        words = f"[{PurePosixPath(uri).name}]"
        self._played[words] = pcm
        if data.get("interruptable") is False:
            self._uninterruptible.add(words)
        if data.get("cancellable") is True:
            self._cancellable.add(words)
        return words

    async def show(self, payload: Mapping[str, Any], text: str) -> None:
        """What only a screen shows, and what is said with it."""
        self._put_payload(dict(payload))
        await self.say(text)
        if not text.strip():
            # Nothing need be said.
            self.decide(Listen())

    def _put_payload(self, payload: Any) -> None:
        if len(self._payloads) < _MAX_PAYLOADS:
            self._payloads.append(payload)

    def take_payloads(self) -> list[Any]:
        """What only a screen shows, since it was asked last."""
        taken, self._payloads = [each for each in self._payloads if each is not None], []
        return taken

    def _customize(self, text: str, data: Mapping[str, Any]) -> None:
        if data.get("disableBargeIn"):
            self._uninterruptible.add(text)
        if data.get("enableDtmf"):
            timeout = float(data.get("dtmfEndpointingTimeout") or ENDPOINTING_MODES["mid"])
            finish = data.get("dtmfFinishDigit")
            self.collect_digits("#" if finish is None else str(finish), timeout)
        else:
            self.decide(Listen())

    async def customize(self, arguments: Mapping[str, Any]) -> None:
        """What the tool `customize_response` was told."""
        text = str(arguments.get("content") or "")
        await self.say(text, interruptible=not as_bool(arguments.get("disable_barge_in")))
        if as_bool(arguments.get("enable_dtmf")):
            mode = str(arguments.get("dtmf_endpointing_timeout_modes") or "mid").lower()
            timeout = ENDPOINTING_MODES.get(mode, ENDPOINTING_MODES["mid"])
            self.collect_digits(str(arguments.get("dtmf_finish_digit") or ""), timeout)

    def collect_digits(self, finish: str, timeout: float) -> None:
        """The next turn may be key presses, ended by a key or by seconds of silence."""
        digits = DigitSettings(
            end_key=finish,
            end_key_alone=True,
            first_digit_timeout=_FIRST_DIGIT,
            inter_digit_timeout=timeout,
            while_speaking=True,
        )
        self.decide(Listen(ListenSettings(digits=digits)))


class MarkedActionQueue(ActionQueue):
    """Passes everything on to the turn's outbox, marked."""

    def __init__(self, inner: ActionQueue, stage: Stage) -> None:
        super().__init__()
        self._inner = inner
        self._stage = stage

    async def put(self, action: Action) -> None:
        await self._inner.put(self._stage.marked(action))

    async def finish(self) -> None:
        await self._inner.finish()


def _decoded(blob: Mapping[str, Any]) -> Mapping[str, Any] | None:
    data = _json(blob)
    return data if isinstance(data, dict) else None


def _json(blob: Mapping[str, Any]) -> Any:
    """None: it is no JSON."""
    try:
        return json.loads(base64.b64decode(str(blob.get("data") or ""), validate=True))
    except (ValueError, binascii.Error):
        return None
