"""Effects of an app's code on the running turn other than words: barge-in, digits, recordings, payloads, its end.

Callbacks return contents whose parts may be more than text. `TurnEffects.render_content` converts them for the tree
engine, and keeps the marks of each text until that text is spoken.

`TurnSpans` measures the turn as the Session API reports it (`diagnosticInfo.rootSpan`): requests to the model,
callbacks around agents and models, and tools. Callbacks around a Python tool run in the worker together with it and are
part of the tool's span.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import PurePosixPath

from callagent.agents.actions import Action, DigitSettings, Listen, ListenSettings, MetricWritten, Say
from callagent.agents.cx.engine.telephony import as_bool
from callagent.agents.cx.format import Recordings, parse_duration
from callagent.agents.protocol import Emit, MetricWriter
from callagent.agents.tree import Content, Ending, parts
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, object_at, parse_json

_CUSTOMIZED = "application/json+agentResponse"
_AUDIO = "application/json+audio"
_PAYLOAD = "application/json"
"""MIME types of parts made by `Part.from_customized_response`, `Part.from_audio` and `Part.from_json`."""
_MAX_PAYLOADS = 100
"""Payloads kept for a client until it takes them; further ones are dropped."""
ENDPOINTING_MODES = {"short": 1.0, "mid": 3.0, "long": 5.0}
"""Name of an endpointing mode -> seconds without a key after which an entry is complete."""
_FIRST_DIGIT_TIMEOUT = 10.0
"""Seconds to wait for the first key."""


class TurnEffects:
    """Effects of an app's code on the call; one object per call, reset by `begin_turn`.

    Texts are matched by their words: a text that code marked as uninterruptible, cancellable or as a recording keeps
    the mark, whether this object or the tree emits it.
    """

    def __init__(self, write_metric: MetricWriter, recordings: Recordings) -> None:
        self._recordings = recordings
        self._recorded_pcm: dict[str, bytes] = {}
        """Recordings of this turn by the words that stand for them in the history."""
        self.metrics: list[MutableJsonObject] = []
        """Metrics written so far, as the call's record has them."""
        self.spans = TurnSpans()
        self._write_metric = write_metric
        self._emit: Emit | None = None
        self._decide: Callable[[Ending], None] | None = None
        self._uninterruptible: set[str] = set()
        self._cancellable: set[str] = set()
        self._payloads: list[JsonValue] = []
        self.end_arguments: MutableJsonObject = {}
        """The parameters of `end_session`, its reason, and whether the session was escalated to a person."""

    def begin_turn(self, emit: Emit, decide: Callable[[Ending], None]) -> None:
        """Begin a turn: `emit` receives its actions, `decide` how it ends."""
        self._emit, self._decide = emit, decide
        # Marks hold for one turn: the next turn may say the same words without them. Payloads stay, because a client
        # may take those of an interrupted turn later.
        self._uninterruptible.clear()
        self._cancellable.clear()
        self._recorded_pcm.clear()
        self.spans.begin()

    def decide(self, ending: Ending) -> None:
        """Set how the turn ends: listening, a transfer or hanging up."""
        if self._decide is not None:
            self._decide(ending)

    def say(self, text: str, *, interruptible: bool = True) -> None:
        """Say a text now, without asking the model. It is not held back for an `after_agent` callback."""
        if self._emit is not None and text.strip():
            self._emit(self.mark_speech(Say(text.strip(), interruptible)))

    async def write_metric(self, name: str, value: JsonValue) -> None:
        """Write a metric of the call to the store and to the record."""
        self.metrics.append({"name": name, "value": value})
        # The metric is stored first: once `MetricWritten` is emitted it must be durable.
        await self._write_metric(name, value)
        if self._emit is not None:
            self._emit(MetricWritten(name, value))

    def mark_speech(self, action: Action) -> Action:
        """Return a spoken text with its marks and the recording played in its place; other actions unchanged."""
        if not isinstance(action, Say):
            return action
        interruptible = action.interruptible and action.text not in self._uninterruptible
        cancellable = action.text in self._cancellable
        return Say(action.text, interruptible, pcm=self._recorded_pcm.get(action.text), cancellable=cancellable)

    def render_content(self, content: Content) -> MutableJsonObject:
        """Return a content with texts in place of its data parts.

        Customized responses and recordings become texts; payloads are kept for the client and left out. If nothing is
        left to say, the turn ends and the model is not asked to fill the silence.
        """
        kept: list[JsonValue] = []
        has_silent_part = False
        for part in parts(content):
            blob = object_at(part, "inline_data")
            if not blob:
                kept.append(part)
            elif (words := self._render_blob(blob)) is None:
                # Such a part is the whole answer only if there are no words beside it.
                has_silent_part = True
            elif words:
                kept.append({"text": words})
        if has_silent_part and not kept:
            self.decide(Listen())
        return {**content, "parts": kept}

    def _render_blob(self, blob: JsonObject) -> str | None:
        """Return the words of a data part, empty if it has none; None if the part is not meant to be spoken."""
        kind = blob.get("mime_type")
        if kind == _AUDIO and (words := self._add_recording(_decode_object(blob))):
            return words
        if kind == _PAYLOAD:
            self._put_payload(_decode_json(blob))
        if kind != _CUSTOMIZED or not isinstance(data := _decode_json(blob), Mapping):
            return None
        text = str(data.get("content") or "").strip()
        self._apply_customization(text, data)
        return text

    def _add_recording(self, data: JsonObject) -> str:
        """Return the words that stand for a recording in the history; empty when it cannot be played."""
        uri = str(data.get("audioUri") or "")
        pcm = self._recordings.pcm(uri)
        if pcm is None:
            return ""
        # In the history and the transcript a text stands for the audio; `mark_speech` finds the audio by that text.
        words = f"[{PurePosixPath(uri).name}]"
        self._recorded_pcm[words] = pcm
        if data.get("interruptable") is False:
            self._uninterruptible.add(words)
        if data.get("cancellable") is True:
            self._cancellable.add(words)
        return words

    def show_payload(self, payload: JsonObject, text: str) -> None:
        """Keep a payload for the client's screen and say the text that goes with it."""
        self._put_payload(dict(payload))
        self.say(text)
        if not text.strip():
            # The widget is the whole answer: without this the model would be asked for words.
            self.decide(Listen())

    def _put_payload(self, payload: JsonValue) -> None:
        if len(self._payloads) < _MAX_PAYLOADS:
            self._payloads.append(payload)

    def take_payloads(self) -> Sequence[JsonValue]:
        """Return the payloads that have come since the previous call of this method."""
        taken, self._payloads = [each for each in self._payloads if each is not None], []
        return taken

    def _apply_customization(self, text: str, data: JsonObject) -> None:
        """Apply a customized response (`AgentResponse` of the platform): barge-in and entry on the keys."""
        if data.get("disableBargeIn"):
            self._uninterruptible.add(text)
        if data.get("enableDtmf"):
            timeout = parse_duration(data.get("dtmfEndpointingTimeout")) or ENDPOINTING_MODES["mid"]
            # With an empty finish digit, only the timeout ends the entry.
            finish_key = data.get("dtmfFinishDigit")
            self.collect_digits("#" if finish_key is None else str(finish_key), timeout)
        else:
            # The response is the whole answer: without this the model would be asked for more words.
            self.decide(Listen())

    def customize_response(self, arguments: Mapping[str, object]) -> None:
        """Carry out the system tool `customize_response`."""
        text = str(arguments.get("content") or "")
        self.say(text, interruptible=not as_bool(arguments.get("disable_barge_in")))
        if as_bool(arguments.get("enable_dtmf")):
            mode = str(arguments.get("dtmf_endpointing_timeout_modes") or "mid").lower()
            timeout = ENDPOINTING_MODES.get(mode, ENDPOINTING_MODES["mid"])
            self.collect_digits(str(arguments.get("dtmf_finish_digit") or ""), timeout)

    def collect_digits(self, finish_key: str, timeout: float) -> None:
        """End the turn listening for key presses, up to `finish_key` or `timeout` seconds without a key."""
        # `while_speaking`: a caller who knows the menu need not hear it to its end.
        digits = DigitSettings(
            end_key=finish_key,
            end_key_alone=True,
            first_digit_timeout=_FIRST_DIGIT_TIMEOUT,
            inter_digit_timeout=timeout,
            while_speaking=True,
        )
        self.decide(Listen(ListenSettings(digits=digits)))


def _decode_object(blob: JsonObject) -> JsonObject:
    data = _decode_json(blob)
    return data if isinstance(data, Mapping) else {}


def _decode_json(blob: JsonObject) -> JsonValue:
    """Return the JSON value of a base64 blob; None if the blob is invalid."""
    try:
        return parse_json(base64.b64decode(str(blob.get("data") or ""), validate=True))
    except ValueError:
        # `binascii.Error` is a ValueError, too.
        return None


class DeferredSpeech:
    """A filter of a turn's actions that holds back the words of an agent until its `after_agent` callback has run.

    Actions other than speech pass at once. When another agent begins, the held-back words of the previous one are said.
    """

    def __init__(self, emit: Emit) -> None:
        """`emit` receives the actions that pass."""
        self._emit = emit
        self._holder = ""
        """The agent whose words are held back; empty if no words are."""
        self._held: list[Say] = []

    def emit(self, action: Action) -> None:
        """Hold an action back, or let it pass."""
        if self._holder and isinstance(action, Say):
            self._held.append(action)
        else:
            self._emit(action)

    def begin_agent(self, agent: str, *, hold: bool) -> None:
        """Note which agent speaks now and whether to hold back its words; say the held-back words of another agent."""
        if agent != self._holder:
            self.release()
        self._holder = agent if hold else ""

    def release(self) -> None:
        """Say the held-back words."""
        held, self._held = self._held, []
        self._holder = ""
        for action in held:
            self._emit(action)

    def drop(self) -> None:
        """Drop the held-back words, because the callback has replaced them."""
        self._held.clear()
        self._holder = ""


MAX_SPANS = 500
"""Spans kept for one turn; further ones are dropped."""
Span = MutableJsonObject
"""A span in the API's form."""


class TurnSpans:
    """The spans of the running turn of one call."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._began = clock()
        self._children: list[tuple[float, Span]] = []

    def begin(self) -> None:
        """Begin a turn, and drop the spans of the previous one."""
        self._began = self._clock()
        self._children.clear()

    @contextmanager
    def measured(self, name: str, **attributes: JsonValue) -> Iterator[MutableJsonObject]:
        """Measure the body of the `with` statement as a span. It may add attributes to the mapping that it gets."""
        began = self._clock()
        try:
            yield attributes
        finally:
            self.add(name, began, self._clock(), attributes)

    def add_ended(self, name: str, seconds: float, attributes: JsonObject) -> None:
        """Add a span that took so many seconds and ends now."""
        now = self._clock()
        self.add(name, now - seconds, now, attributes)

    def add(self, name: str, began: float, ended: float, attributes: JsonObject) -> None:
        """Add a span between two Unix times in seconds; beyond `MAX_SPANS` it is dropped."""
        if len(self._children) < MAX_SPANS:
            self._children.append((began, span(name, began, ended, attributes)))

    def root_span(self, attributes: JsonObject) -> Span:
        """Return the turn's span with its parts, in the order in which they began."""
        # Spans are added when they end, so a nested one stands before the one around it.
        children = [each for _, each in sorted(self._children, key=lambda child: child[0])]
        return {**span("turn", self._began, self._clock(), attributes), "childSpans": children}


def span(name: str, began: float, ended: float, attributes: JsonObject) -> Span:
    """Return a span in the API's form: times by RFC 3339, the duration as seconds with an `s`."""
    return {
        "name": name,
        "startTime": _instant(began),
        "endTime": _instant(ended),
        "duration": f"{max(0.0, ended - began):.6f}s",
        "attributes": {key: value for key, value in attributes.items() if value not in (None, "")},
    }


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
