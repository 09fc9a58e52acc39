"""What a model says, taken apart while it arrives: words for the caller and whole function calls.

Whatever the chunks, the result is the same. A complete control token is never part of the words: a start token opens
a call, a stop token ends the answer, any other is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby

from callagent.models.functiongemma.declarations import function_of
from callagent.models.functiongemma.expression import FunctionCall, read_calls
from callagent.models.functiongemma.schema import coerce_arguments
from callagent.models.functiongemma.tokens import TOKEN_SETS, TokenSet
from callagent.models.protocol import Tool


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a model's answer that is not as it should be."""

    reason: str
    name: str = ""
    """The function it is about, where known."""
    call: FunctionCall | None = None
    """The call as the model wrote it, where it could be read."""
    lost: bool = True
    """A call was lost by it; False: it was read all the same."""


@dataclass(frozen=True, slots=True)
class Delta:
    """One step of an answer: words, a call, or a problem."""

    text: str = ""
    tool_call: FunctionCall | None = None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    calls: list[FunctionCall]
    content: str
    """The words around the calls, as they stand."""
    truncated: bool
    """The answer ended within a call; it counts if its expression is complete."""
    problems: list[Problem] = field(default_factory=list)


class _State(Enum):
    TEXT = auto()
    CALL = auto()
    OVER = auto()
    """Behind a stop token: what follows is not the model's to say."""


class _Kind(Enum):
    OPEN = auto()
    CLOSE = auto()
    STOP = auto()
    QUOTE = auto()
    OTHER = auto()


class StreamParser:
    """Takes an answer in chunks. With tools, calls of unknown functions and with invalid arguments become problems.

    `tokens` limits it to one token set; else either is understood.
    """

    def __init__(self, tools: Sequence[Tool] | None = None, *, tokens: TokenSet | None = None) -> None:
        self._functions = None if tools is None else {each["name"]: each for each in map(function_of, tools)}
        self._kinds = _kinds((tokens,) if tokens else TOKEN_SETS)
        self._pattern = re.compile("|".join(map(re.escape, self._kinds)))
        self._longest = max(map(len, self._kinds))
        self._state = _State.TEXT
        self._held = ""
        """The beginning of what may become a control token."""
        self._body: list[str] = []
        """The open call, in pieces: texts and control tokens in turn."""
        self._quote = ""
        """The delimiter of the open string."""
        self._closed_in_string: int | None = None
        """Index in the body of the first end token that stands in the open string."""
        self.truncated = False

    def feed(self, chunk: str) -> list[Delta]:
        """What the chunk completes."""
        data = self._held + chunk
        deltas: list[Delta] = []
        at = 0
        for token in self._pattern.finditer(data):
            deltas += self._take_text(data[at : token.start()])
            deltas += self._take_token(token[0])
            at = token.end()
        keep = self._token_may_begin(data, at)
        deltas += self._take_text(data[at:keep])
        self._held = data[keep:]
        return _joined(deltas)

    def finish(self) -> list[Delta]:
        """The rest, when the answer is over."""
        deltas = self._take_text(self._held)
        self._held = ""
        if self._state is _State.CALL:
            self.truncated = True
            deltas += self._end_call()
        self._state = _State.OVER
        return _joined(deltas)

    def _token_may_begin(self, data: str, start: int) -> int:
        """Index from which the data may be the beginning of a token; its length: from nowhere."""
        begin = data.rfind("<", max(start, len(data) - self._longest))
        if begin < 0 or not any(token.startswith(data[begin:]) for token in self._kinds):
            return len(data)
        return begin

    def _take_text(self, text: str) -> list[Delta]:
        if self._state is _State.CALL:
            self._body.append(text)
        return [Delta(text=text)] if text and self._state is _State.TEXT else []

    def _take_token(self, token: str) -> list[Delta]:
        kind = self._kinds[token]
        if self._state is _State.TEXT:
            self._state = {_Kind.OPEN: _State.CALL, _Kind.STOP: _State.OVER}.get(kind, _State.TEXT)
            return []
        if self._state is _State.OVER:
            return []
        if kind in (_Kind.OPEN, _Kind.STOP):
            return self._cut_call(kind)
        if kind is _Kind.CLOSE and not self._quote:
            return self._end_call()
        self._take_in_call(token, kind)
        return []

    def _take_in_call(self, token: str, kind: _Kind) -> None:
        """A token that does not end the call: a delimiter, or one that stands in a string."""
        if kind is _Kind.QUOTE and self._quote in ("", token):
            self._quote = "" if self._quote else token
            self._closed_in_string = None
        elif kind is _Kind.CLOSE and self._closed_in_string is None:
            self._closed_in_string = len(self._body)
        self._body.append(token)

    def _cut_call(self, kind: _Kind) -> list[Delta]:
        """A call that another one, or the end of the answer, cuts short."""
        self.truncated = self.truncated or self._closed_in_string is None
        deltas = self._end_call()
        self._state = _State.CALL if kind is _Kind.OPEN else _State.OVER
        return deltas

    def _end_call(self) -> list[Delta]:
        body, mark = self._body, self._closed_in_string
        self._state, self._body, self._quote, self._closed_in_string = _State.TEXT, [], "", None
        if mark is None:
            return list(self._read("".join(body)))
        # The string never ended: the end token was meant, and words came after it.
        words = "".join(piece for piece in body[mark:] if piece not in self._kinds)
        return [*self._read("".join(body[:mark])), *([Delta(text=words)] if words else [])]

    def _read(self, body: str) -> Iterator[Delta]:
        reading = read_calls(body)
        for call in reading.calls:
            yield self._checked(call)
        for problem in reading.problems:
            yield Delta(problem=Problem(problem, lost=False))
        if reading.error:
            yield Delta(problem=Problem(reading.error, reading.name))

    def _checked(self, call: FunctionCall) -> Delta:
        if self._functions is None:
            return Delta(tool_call=call)
        function = self._functions.get(call.name)
        if function is None:
            return Delta(problem=Problem(f"there is no function '{call.name}'", call.name, call))
        try:
            arguments = coerce_arguments(call.arguments, function.get("parameters") or {"type": "object"})
        except ValueError as error:
            return Delta(problem=Problem(str(error), call.name, call))
        return Delta(tool_call=FunctionCall(call.name, arguments))


def parse_output(text: str, tools: Sequence[Tool] | None = None, *, tokens: TokenSet | None = None) -> ParsedOutput:
    """A whole answer; see `StreamParser`. Whatever the text, it does not raise."""
    parser = StreamParser(tools, tokens=tokens)
    deltas = [*parser.feed(text), *parser.finish()]
    return ParsedOutput(
        [delta.tool_call for delta in deltas if delta.tool_call],
        "".join(delta.text for delta in deltas),
        parser.truncated,
        [delta.problem for delta in deltas if delta.problem],
    )


def _kinds(sets: Sequence[TokenSet]) -> dict[str, _Kind]:
    kinds = {token: _Kind.OTHER for tokens in sets for token in tokens.control}
    for tokens in sets:
        kinds |= dict.fromkeys(tokens.stops, _Kind.STOP)
        # A turn that begins is somebody else's: this one is over.
        kinds[tokens.start_turn] = _Kind.STOP
        kinds |= {tokens.start_call: _Kind.OPEN, tokens.end_call: _Kind.CLOSE, tokens.escape: _Kind.QUOTE}
    return kinds


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Neighbouring words as one delta."""
    joined: list[Delta] = []
    for spoken, group in groupby(deltas, lambda delta: bool(delta.text)):
        together = list(group)
        joined += [Delta(text="".join(delta.text for delta in together))] if spoken else together
    return joined
