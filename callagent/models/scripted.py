"""A language model that answers from a file: `script:FILE`, for tests and demonstrations.

The file is a YAML list, one entry per request, used in order:

    - text: "For how many people?"
    - calls: [{name: booking_size_given, arguments: {size: 4}}]
      delay: 1.2
    - expect: {tools: [booking_size_given], system: "people", last_user: "^four"}
      text: "Thank you."
    - error: timeout

`text` and `calls` may stand together; `delay` is in seconds, before the first token; `error` is one of `timeout`,
`refused`, `500`, `withheld` (as unsafe) and `cut` (half of the text, then the connection is lost). In `expect`, `tools`
names tools that must be offered; `system` and `last_user` are regular expressions that must be found in the system
messages and in the caller's last words.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from callagent.errors import AnswerWithheld, ProviderError, ProviderRefused, ProviderTimeout, UserError
from callagent.models.protocol import Delta, LanguageModel, Message, MessageCall, ModelSettings, Tool, ToolCall

_ERRORS = ("timeout", "refused", "500", "cut", "withheld")
_ENTRY_KEYS = {"text", "calls", "delay", "expect", "error"}
_EXPECT_KEYS = {"tools", "system", "last_user"}
_MAX_SHOWN_CHARACTERS = 2000


class ScriptError(UserError):
    """A script that cannot be read, or that does not fit a request; the text shows expected and actual values."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a request must look like; a field that is None is not checked."""

    tools: tuple[str, ...] | None = None
    """Names that must be among the offered tools."""
    system: re.Pattern[str] | None = None
    last_user: re.Pattern[str] | None = None

    def mismatches(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Iterator[str]:
        """Yield a text for each difference, with what was expected and what the request has."""
        offered = _tool_names(tools)
        if self.tools is not None and not set(self.tools) <= set(offered):
            yield f"tools: expected {list(self.tools)}, offered {offered}"
        if self.system and not self.system.search(system := _system_text(messages)):
            yield f"system: expected /{self.system.pattern}/, got:\n{_shorten(system)}"
        if self.last_user and not self.last_user.search(last := _last_user_text(messages)):
            yield f"last_user: expected /{self.last_user.pattern}/, got: {last!r}"


@dataclass(frozen=True, slots=True)
class Entry:
    """The answer to one request."""

    text: str | None = ""
    """None: the model sends no text at all; an empty text is sent as one empty delta."""
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments as JSON."""
    delay: float = 0.0
    """Seconds before the first token."""
    expect: Expectation = Expectation()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """The answers to the requests of one call, in their order."""

    name: str
    """The file's name, which error messages quote."""
    entries: tuple[Entry, ...]

    @classmethod
    def parse(cls, data: object, name: str) -> Script:
        """Read a script from the YAML's data. Raises `ScriptError` naming file, entry and key."""
        if not isinstance(data, list):
            raise ScriptError(f"{name}: a script is a list, one entry per model request")
        return cls(name, tuple(_parse_entry(item, f"{name}, entry {n}") for n, item in enumerate(data, 1)))


class ScriptedModel:
    """A language model that answers from a script.

    It counts the entries used. `for_call()` returns a model of its own for each call, so that every call starts at the
    first entry.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._requests = 0

    @classmethod
    def from_file(cls, path: Path | str) -> ScriptedModel:
        """Read the script in a file. Raises `ScriptError` when it cannot be read or is not a script."""
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            data = YAML(typ="safe", pure=True).load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ScriptError(f"script {path} cannot be read: {error}") from None
        except YAMLError as error:
            raise ScriptError(f"script {path} is not valid YAML: {error}") from None
        return cls(Script.parse(data if data is not None else [], str(path)))

    @classmethod
    def from_entries(cls, *entries: Mapping[str, object]) -> ScriptedModel:
        """Make a model from entries as they stand in a file."""
        return cls(Script.parse(list(entries), "script"))

    def for_call(self) -> LanguageModel:
        return ScriptedModel(self._script)

    @property
    def remaining(self) -> int:
        """How many entries are not used yet."""
        return len(self._script.entries) - self._requests

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        entry = self._next_entry(messages, tools)
        await asyncio.sleep(entry.delay)
        if entry.error and entry.error != "cut":
            _fail(entry.error)
        pieces = re.findall(r"\S+\s*|\s+", entry.text or "")
        for piece in pieces[: len(pieces) // 2] if entry.error else pieces:
            yield Delta(text=piece)
        if entry.error:
            _fail(entry.error)
        # For `text: ""` one empty delta is sent, and none for an entry without `text`: code must cope with both.
        if entry.text == "" and not entry.calls:
            yield Delta()
        for number, (name, arguments) in enumerate(entry.calls, 1):
            yield Delta(tool_call=ToolCall(f"call_{self._requests}_{number}", name, arguments))

    async def close(self) -> None:
        pass

    def _next_entry(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Entry:
        # Requests are counted before the check, so that its message has the number of the request without an entry.
        self._requests += 1
        if self._requests > len(self._script.entries):
            raise ScriptError(
                f"{self._script.name} has {len(self._script.entries)} entries; request {self._requests} has none:\n"
                + describe_request(messages, tools)
            )
        entry = self._script.entries[self._requests - 1]
        if mismatches := list(entry.expect.mismatches(messages, tools)):
            raise ScriptError(
                f"{self._script.name}, entry {self._requests}: the request is not the expected one\n"
                + "\n".join(mismatches)
            )
        return entry


def describe_request(messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """Return a request in a few lines, for error messages."""
    lines = [f"tools: {_tool_names(tools)}"]
    for message in messages:
        content = message.get("content") or ""
        calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in _calls(message)]
        lines.append(f"{message['role']}: {_shorten(str(content))}{' '.join(calls)}")
    return "\n".join(lines)


def _parse_entry(item: object, place: str) -> Entry:
    if not isinstance(item, dict):
        raise ScriptError(f"{place}: expected a map with some of {sorted(_ENTRY_KEYS)}, got {item!r}")
    _check_keys(item, _ENTRY_KEYS, place)
    if not {"text", "calls", "error"} & item.keys():
        raise ScriptError(f"{place}: needs text, calls or error")
    error = str(item.get("error", ""))
    if error and error not in _ERRORS:
        raise ScriptError(f"{place}: error is '{error}', expected one of {', '.join(_ERRORS)}")
    delay = item.get("delay", 0)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or delay < 0:
        raise ScriptError(f"{place}: delay is {delay!r}, expected seconds")
    text = item.get("text")
    if "text" in item and not isinstance(text, str):
        raise ScriptError(f"{place}: text is {text!r}, expected a string; put it in quotes")
    calls = item.get("calls") or []
    if not isinstance(calls, list):
        raise ScriptError(f"{place}: calls is {calls!r}, expected a list")
    expect = _parse_expectation(item.get("expect") or {}, place)
    return Entry(text, tuple(_parse_call(call, place) for call in calls), float(delay), expect, error)


def _parse_call(call: object, place: str) -> tuple[str, str]:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise ScriptError(f"{place}: a call is {{name: …, arguments: {{…}}}}, got {call!r}")
    _check_keys(call, {"name", "arguments"}, place)
    arguments = call.get("arguments")
    # A string is sent unchanged, so that a script can contain invalid JSON.
    return call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments or {}, default=str)


def _parse_expectation(data: object, place: str) -> Expectation:
    if not isinstance(data, dict):
        raise ScriptError(f"{place}: expect is {data!r}, expected a map with some of {sorted(_EXPECT_KEYS)}")
    _check_keys(data, _EXPECT_KEYS, place)
    tools = data.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise ScriptError(f"{place}: expect.tools is {tools!r}, expected a list of names")
    return Expectation(
        tuple(str(name) for name in tools) if tools is not None else None,
        _parse_pattern(data, "system", place),
        _parse_pattern(data, "last_user", place),
    )


def _parse_pattern(data: Mapping[str, object], key: str, place: str) -> re.Pattern[str] | None:
    if data.get(key) is None:
        return None
    try:
        return re.compile(str(data[key]))
    except re.error as error:
        raise ScriptError(f"{place}: expect.{key} is not a regular expression: {error}") from None


def _check_keys(data: Mapping[object, object], known: set[str], place: str) -> None:
    if unknown := sorted(str(key) for key in data.keys() - known):
        raise ScriptError(f"{place}: unknown key {', '.join(unknown)}; known here: {', '.join(sorted(known))}")


def _fail(error: str) -> NoReturn:
    match error:
        case "timeout":
            raise ProviderTimeout("the script's provider did not answer in time")
        case "refused":
            raise ProviderRefused("the script's provider refused the request")
        case "withheld":
            raise AnswerWithheld("the script's provider withheld the answer")
        case "500":
            raise ProviderError("the script's provider answered 500")
        case _:
            raise ProviderError("the script's provider cut the connection")


def _tool_names(tools: Sequence[Tool]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def _system_text(messages: Sequence[Message]) -> str:
    return "\n".join(str(message["content"]) for message in messages if message["role"] == "system")


def _last_user_text(messages: Sequence[Message]) -> str:
    return next((str(message["content"]) for message in reversed(messages) if message["role"] == "user"), "")


def _calls(message: Message) -> Sequence[MessageCall]:
    return message.get("tool_calls") or ()


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]} … ({len(text)} characters)"
