"""Parsing of a model's answer: call expressions `call:NAME{key:value,…}`, and the stream of text around them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby

from callagent.json_values import JsonValue, MutableJsonObject, object_at
from callagent.models.functiongemma.format import MAX_DEPTH, TOKEN_SETS, TokenSet, function_of
from callagent.models.functiongemma.schema import coerce_arguments
from callagent.models.protocol import Tool

_SPACE = re.compile(r"[ \t\r\n]*")
_CALL = re.compile(r"[ \t\r\n]*call[ \t\r\n]*:[ \t\r\n]*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_KEY = re.compile(r"[ \t\r\n]*([A-Za-z_][A-Za-z0-9_.\-]*)[ \t\r\n]*:[ \t\r\n]*")
_NEXT = re.compile(r"[ \t\r\n]*([,}\]])[ \t\r\n]*")
_SCALAR = re.compile(
    r"(?:(-?(?:0|[1-9][0-9]*))((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|(true|false|null))(?![^ \t\r\n,}\]])"
)
_BARE = re.compile(r"[^,{}\[\]<>]+")
_QUOTED_KEY = re.compile(r'"([^"<>]*)"(?=[ \t\r\n]*:)')
_QUOTED = re.compile(r'"([^"<>]*)"(?=[ \t\r\n]*[,}\]])')
_KEYWORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_MAX_DIGITS = 4300
"""Digits of an integer. This is Python's own limit, because the time to read them grows with the square."""
_QUOTES = tuple(tokens.escape for tokens in TOKEN_SETS)
_OPENING = tuple(tokens.start_call for tokens in TOKEN_SETS)
_CLOSING = {tokens.start_call: tokens.end_call for tokens in TOKEN_SETS}


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call as the model wrote it."""

    name: str
    arguments: MutableJsonObject = field(default_factory=dict)


class ExpressionError(ValueError):
    """The text is not a call; `position` is the index of the first character that does not fit."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} at position {position}")
        self.reason = reason
        self.position = position


@dataclass(slots=True)
class ReadCalls:
    """The calls in a call block, with what was wrong with it."""

    calls: list[FunctionCall] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Deviations from the grammar that were accepted."""
    error: str = ""
    """Why a call could not be read; empty: all were."""
    name: str = ""
    """The function of the call that could not be read, if its name could."""


def parse_expression(text: str) -> list[FunctionCall]:
    """Return every call of the text, bare or between call tokens, in either token set.

    Raises `ExpressionError` (a `ValueError`) for anything else in the text.
    """
    reader = _Reader(text)
    calls = []
    while not reader.at_end():
        opening = reader.accept(*_OPENING)
        calls.append(reader.call())
        if opening:
            reader.expect(_CLOSING[opening])
    return calls


def read_calls(text: str) -> ReadCalls:
    """Read the text inside a call block. Never raises.

    The usual mistakes of small models are accepted: bare or quoted words as strings, quoted keys, a comma too many, and
    text after the call.
    """
    reader, reading = _Reader(text, lenient=True), ReadCalls()
    try:
        while not reader.at_end():
            if reading.calls and not reader.at_call():
                reader.note("text behind the call")
                break
            reading.calls.append(reader.call())
        if not reading.calls:
            reading.error = "the call is empty"
    except ExpressionError as error:
        reading.error, reading.name = str(error), reader.name
    reading.problems = reader.problems
    return reading


class _Reader:
    """A recursive-descent parser: methods read the text from the current position and move it."""

    def __init__(self, text: str, *, lenient: bool = False) -> None:
        self._text = text
        self._at = 0
        self._lenient = lenient
        self._noted: dict[str, None] = {}
        self.name = ""

    @property
    def problems(self) -> list[str]:
        """Accepted deviations from the grammar, each kind once."""
        return list(self._noted)

    def note(self, problem: str) -> None:
        """Add an accepted deviation from the grammar to `problems`."""
        self._noted[problem] = None

    def at_end(self) -> bool:
        """Return whether nothing but white space is left."""
        self._skip_space()
        return self._at == len(self._text)

    def at_call(self) -> bool:
        """Return whether a call begins here."""
        return _CALL.match(self._text, self._at) is not None

    def accept(self, *texts: str) -> str:
        """Read the first of the texts that is here and return it; empty: none is."""
        self._skip_space()
        for text in texts:
            if self._text.startswith(text, self._at):
                self._at += len(text)
                return text
        return ""

    def expect(self, text: str) -> None:
        """Read the text. Raises `ExpressionError` if it is not here."""
        if not self.accept(text):
            raise self._error(f"expected '{text}'")

    def call(self) -> FunctionCall:
        """Read a call. Raises `ExpressionError`."""
        self.name = ""
        if self._match(_CALL) is None:
            raise self._error("expected 'call:'")
        if (name := self._match(_IDENTIFIER)) is None:
            raise self._error("expected the name of a function")
        self.name = name[0]
        return FunctionCall(self.name, self._object(1) if self.accept("{") else {})

    def _object(self, depth: int) -> MutableJsonObject:
        """Read an object after its opening brace. If a key comes twice, its first value counts."""
        found: MutableJsonObject = {}
        if self.accept("}"):
            return found
        while True:
            key = self._key()
            found.setdefault(key, self._value(depth))
            if self._read_end("}"):
                return found

    def _array(self, depth: int) -> list[JsonValue]:
        found: list[JsonValue] = []
        # `accept` has read the white space before the first value.
        if self.accept("]"):
            return found
        while True:
            found.append(self._value(depth))
            if self._read_end("]"):
                return found

    def _read_end(self, closing: str) -> bool:
        """Read `closing` and return True, or read a comma and return False: another item follows."""
        # The pattern includes the white space on both sides, so that the next item begins at the new position.
        following = _NEXT.match(self._text, self._at)
        if following is None or following[1] not in (",", closing):
            self._skip_space()
            raise self._error(f"expected ',' or '{closing}'")
        self._at = following.end()
        if following[1] == closing:
            return True
        if self._lenient and self._text.startswith(closing, self._at):
            self._at += 1
            self.note("a comma without a value behind it")
            return True
        return False

    def _key(self) -> str:
        """Read a key and the colon behind it."""
        if (named := self._match(_KEY)) is not None:
            return named[1]
        if quote := self.accept(*_QUOTES):
            key = self._string(quote)
        elif self._lenient and (quoted := self._match(_QUOTED_KEY)) is not None:
            self.note("a key between quotation marks")
            key = quoted[1]
        elif (name := self._match(_IDENTIFIER)) is not None:
            key = name[0]
        else:
            raise self._error("expected a key")
        self.expect(":")
        self._skip_space()
        return key

    def _value(self, depth: int) -> JsonValue:
        """Read the value that begins here, without white space before it."""
        # A number or keyword must end at white space, a comma or a bracket: `5pm` is a bare word.
        if (scalar := _SCALAR.match(self._text, self._at)) is not None:
            self._at = scalar.end()
            return _KEYWORDS[scalar[3]] if scalar[3] else _number(scalar)
        opening = self._text[self._at : self._at + 1]
        if opening == "<" and (quote := self.accept(*_QUOTES)):
            return self._string(quote)
        if opening in ("{", "["):
            if depth >= MAX_DEPTH:
                raise self._error(f"deeper than {MAX_DEPTH} levels")
            self._at += 1
            return self._object(depth + 1) if opening == "{" else self._array(depth + 1)
        if self._lenient:
            return self._word()
        raise self._error("expected a value")

    def _string(self, quote: str) -> str:
        end = self._text.find(quote, self._at)
        if end < 0:
            raise self._error("the string does not end")
        text = self._text[self._at : end]
        self._at = end + len(quote)
        return text

    def _word(self) -> str:
        """Read a string without its delimiters. Digits with leading zeros, which are no number, are such a string."""
        if (quoted := self._match(_QUOTED)) is not None:
            self.note("a string between quotation marks")
            return quoted[1]
        if (word := self._match(_BARE)) is None:
            raise self._error("expected a value")
        self.note("a string without delimiters")
        return word[0].rstrip()

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _skip_space(self) -> None:
        # The pattern always matches, at least the empty text.
        space = _SPACE.match(self._text, self._at)
        assert space is not None
        self._at = space.end()

    def _error(self, reason: str) -> ExpressionError:
        return ExpressionError(reason, self._at)


def _number(scalar: re.Match[str]) -> int | float:
    if not scalar[2]:
        if len(scalar[1]) > _MAX_DIGITS:
            raise ExpressionError(f"a number of more than {_MAX_DIGITS} digits", scalar.start())
        return int(scalar[1])
    value = float(scalar[0])
    if value in (float("inf"), float("-inf")):
        raise ExpressionError("a number without a value", scalar.start())
    return value


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in a model's answer."""

    reason: str
    name: str = ""
    """The called function, if known."""
    call: FunctionCall | None = None
    """The call as the model wrote it, if it could be read."""
    is_loss: bool = True
    """Whether the call is lost; False: it was read in spite of the mistake."""


@dataclass(frozen=True, slots=True)
class Delta:
    """One step of an answer: words, a call, or a problem."""

    text: str = ""
    tool_call: FunctionCall | None = None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A whole answer of a model."""

    calls: list[FunctionCall]
    content: str
    """The text around the calls, unchanged."""
    truncated: bool
    """Whether the answer ended within a call; the call counts if its expression is complete."""
    problems: list[Problem] = field(default_factory=list)


class _State(Enum):
    """The part of the answer in which the parser is."""

    TEXT = auto()
    CALL = auto()
    OVER = auto()
    """After a stop token: the model then invents a turn of somebody else."""


class _Kind(Enum):
    """The effect of a control token."""

    OPEN = auto()
    CLOSE = auto()
    STOP = auto()
    QUOTE = auto()
    OTHER = auto()


class StreamParser:
    """A parser of an answer that comes in chunks of any length.

    With `tools`, a call of an unknown function, or one with invalid arguments, becomes a problem. `tokens` limits the
    parser to one token set; without it, both are understood.
    """

    def __init__(self, tools: Sequence[Tool] | None = None, *, tokens: TokenSet | None = None) -> None:
        self._functions = None if tools is None else {each["name"]: each for each in map(function_of, tools)}
        self._kinds = _token_kinds((tokens,) if tokens else TOKEN_SETS)
        self._pattern = re.compile("|".join(map(re.escape, self._kinds)))
        self._longest = max(map(len, self._kinds))
        self._state = _State.TEXT
        self._held = ""
        """The end of the text so far, if a control token may begin there."""
        self._body: list[str] = []
        """The pieces of the open call: texts and control tokens."""
        self._quote = ""
        """The delimiter of the open string; empty: none is open."""
        self._closed_in_string: int | None = None
        """Index in `_body` of the first end token inside the open string."""
        self.truncated = False

    def feed(self, chunk: str) -> list[Delta]:
        """Return the deltas that the chunk completes."""
        # A control token may be split between two chunks, so its possible beginning is read again.
        data = self._held + chunk
        deltas: list[Delta] = []
        at = 0
        for token in self._pattern.finditer(data):
            deltas += self._feed_text(data[at : token.start()])
            deltas += self._feed_token(token[0])
            at = token.end()
        keep = self._possible_token_start(data, at)
        deltas += self._feed_text(data[at:keep])
        self._held = data[keep:]
        return _join_words(deltas)

    def finish(self) -> list[Delta]:
        """Return the remaining deltas, when the answer is over."""
        deltas = self._feed_text(self._held)
        self._held = ""
        if self._state is _State.CALL:
            self.truncated = True
            deltas += self._end_call()
        self._state = _State.OVER
        return _join_words(deltas)

    # "<" is the first character of every token and in none again, so an unfinished token begins at the last "<".
    def _possible_token_start(self, data: str, start: int) -> int:
        """Return the index at which an unfinished token may begin; the length of the data if there is none."""
        begin = data.rfind("<", max(start, len(data) - self._longest))
        if begin < 0 or not any(token.startswith(data[begin:]) for token in self._kinds):
            return len(data)
        return begin

    def _feed_text(self, text: str) -> list[Delta]:
        if self._state is _State.CALL:
            self._body.append(text)
        return [Delta(text=text)] if text and self._state is _State.TEXT else []

    def _feed_token(self, token: str) -> list[Delta]:
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
        self._feed_into_call(token, kind)
        return []

    def _feed_into_call(self, token: str, kind: _Kind) -> None:
        """Add a token that does not end the call: a delimiter of strings, or a token inside a string."""
        if kind is _Kind.QUOTE and self._quote in ("", token):
            self._quote = "" if self._quote else token
            self._closed_in_string = None
        elif kind is _Kind.CLOSE and self._closed_in_string is None:
            self._closed_in_string = len(self._body)
        self._body.append(token)

    def _cut_call(self, kind: _Kind) -> list[Delta]:
        """End a call that another call or the end of the answer interrupts."""
        self.truncated = self.truncated or self._closed_in_string is None
        deltas = self._end_call()
        self._state = _State.CALL if kind is _Kind.OPEN else _State.OVER
        return deltas

    def _end_call(self) -> list[Delta]:
        body, mark = self._body, self._closed_in_string
        self._state, self._body, self._quote, self._closed_in_string = _State.TEXT, [], "", None
        if mark is None:
            return list(self._read("".join(body)))
        # The string never ended, so the end token inside it was meant to end the call, and words followed.
        words = "".join(piece for piece in body[mark:] if piece not in self._kinds)
        return [*self._read("".join(body[:mark])), *([Delta(text=words)] if words else [])]

    def _read(self, body: str) -> Iterator[Delta]:
        reading = read_calls(body)
        for call in reading.calls:
            yield self._check_call(call)
        for problem in reading.problems:
            yield Delta(problem=Problem(problem, is_loss=False))
        if reading.error:
            yield Delta(problem=Problem(reading.error, reading.name))

    def _check_call(self, call: FunctionCall) -> Delta:
        if self._functions is None:
            return Delta(tool_call=call)
        function = self._functions.get(call.name)
        if function is None:
            return Delta(problem=Problem(f"there is no function '{call.name}'", call.name, call))
        try:
            arguments = coerce_arguments(call.arguments, object_at(function, "parameters") or {"type": "object"})
        except ValueError as error:
            return Delta(problem=Problem(str(error), call.name, call))
        return Delta(tool_call=FunctionCall(call.name, arguments))


def parse_output(text: str, tools: Sequence[Tool] | None = None, *, tokens: TokenSet | None = None) -> ParsedOutput:
    """Parse a whole answer as `StreamParser` does. Never raises."""
    parser = StreamParser(tools, tokens=tokens)
    deltas = [*parser.feed(text), *parser.finish()]
    return ParsedOutput(
        [delta.tool_call for delta in deltas if delta.tool_call],
        "".join(delta.text for delta in deltas),
        parser.truncated,
        [delta.problem for delta in deltas if delta.problem],
    )


def _token_kinds(sets: Sequence[TokenSet]) -> dict[str, _Kind]:
    kinds = {token: _Kind.OTHER for tokens in sets for token in tokens.control}
    # Later entries replace earlier ones, because stops are also control tokens.
    for tokens in sets:
        kinds |= dict.fromkeys(tokens.stops, _Kind.STOP)
        # A new turn is somebody else's, so this answer is over.
        kinds[tokens.start_turn] = _Kind.STOP
        kinds |= {tokens.start_call: _Kind.OPEN, tokens.end_call: _Kind.CLOSE, tokens.escape: _Kind.QUOTE}
    return kinds


def _join_words(deltas: list[Delta]) -> list[Delta]:
    """Return the deltas, with the words of neighbours joined."""
    joined: list[Delta] = []
    for spoken, group in groupby(deltas, lambda delta: bool(delta.text)):
        together = list(group)
        joined += [Delta(text="".join(delta.text for delta in together))] if spoken else together
    return joined
