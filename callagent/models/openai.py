"""Any server that speaks OpenAI's chat completions: OpenAI itself, vLLM, Ollama, llama.cpp, Groq and others.

One streamed request per answer (`POST {base_url}/chat/completions`). Text is passed on as it arrives; tool calls come
in fragments and are passed on whole, behind the text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.log import get_logger
from callagent.models.factory import ProviderSettings
from callagent.models.protocol import Delta, Message, ModelSettings, Tool, ToolCall, Usage
from callagent.models.sse import EventParser

if TYPE_CHECKING:
    import aiohttp

log = get_logger(__name__)

_EVENT_LIMIT = 1 << 16
"""Bytes; a longer JSON text would hold up the media loop."""
_BODY_LIMIT = 4 << 20
_ERROR_BODY_LIMIT = 4096
_MOST_CALLS = 64
_DONE = "[DONE]"


@dataclass(slots=True)
class _Fragments:
    """A tool call as far as it has arrived."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """One answer, put together from the stream's events. No I/O."""

    finished: bool = False
    """The server said that the answer is whole."""
    _calls: dict[str, _Fragments] = field(default_factory=dict)
    _usage: Usage | None = None

    def take(self, event: str) -> str:
        """The text that an event adds. Raises `ProviderError` for an error event and for what is no event."""
        if event == _DONE:
            self.finished = True
            return ""
        try:
            data = json.loads(event)
            if error := data.get("error"):
                raise ProviderError(f"the model's server reported: {_error_text(error)}")
            if usage := data.get("usage"):
                self._usage = Usage(int(usage["prompt_tokens"]), int(usage["completion_tokens"]))
            return "".join(self._take_choice(choice) for choice in (data.get("choices") or ())[:1])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ProviderError(f"the model's server sent what is no chat completion: {event[:200]!r}") from error

    def rest(self) -> Iterator[Delta]:
        """What is passed on at the end: tool calls in their order, usage."""
        for number, call in enumerate(self._calls.values(), 1):
            if not call.name:
                raise ProviderError("the model's server sent a tool call without a name")
            # Some servers give no identifiers; the answer to a call needs one.
            yield Delta(tool_call=ToolCall(call.id or f"call_{number}", call.name, call.arguments or "{}"))
        if self._usage:
            yield Delta(usage=self._usage)

    def _take_choice(self, choice: Mapping[str, Any]) -> str:
        delta = choice.get("delta") or {}
        for fragment in delta.get("tool_calls") or ():
            self._take_fragment(fragment)
        if choice.get("finish_reason"):
            self.finished = True
        return str(delta.get("content") or "")

    def _take_fragment(self, fragment: Mapping[str, Any]) -> None:
        call = self._calls.setdefault(self._key(fragment), _Fragments())
        if len(self._calls) > _MOST_CALLS:
            raise ProviderError(f"the model called more than {_MOST_CALLS} tools at once")
        function = fragment.get("function") or {}
        call.id = call.id or str(fragment.get("id") or "")
        call.name += str(function.get("name") or "")
        arguments = function.get("arguments")
        call.arguments += arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments else ""

    def _key(self, fragment: Mapping[str, Any]) -> str:
        """Which call a fragment belongs to: by index; without one, a new identifier or name begins a new call."""
        if fragment.get("index") is not None:
            return f"index {fragment['index']}"
        if fragment.get("id"):
            return f"id {fragment['id']}"
        begins = bool((fragment.get("function") or {}).get("name")) or not self._calls
        return f"number {len(self._calls)}" if begins else next(reversed(self._calls))


class OpenAIModel:
    """A model of an OpenAI-compatible server; `close()` ends its connections."""

    def __init__(self, model: str, settings: ProviderSettings) -> None:
        self._model = model
        self._settings = settings
        self._url = settings.base_url.rstrip("/") + "/chat/completions"
        self._session: aiohttp.ClientSession | None = None

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        deadlines = _Deadlines.begin(self._settings)
        response = await self._request(self._body(messages, tools, settings), deadlines)
        answer = Answer()
        try:
            async for event in _events(response, deadlines):
                if text := answer.take(event):
                    deadlines.answered = True
                    yield Delta(text=text)
                if event == _DONE:
                    break
        finally:
            # A stream that was not read to its end is no use to the next request.
            response.close()
        if not answer.finished:
            raise ProviderError("the model's server ended the answer before it was whole")
        for delta in answer.rest():
            yield delta

    async def close(self) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    def _body(self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": settings.model or self._model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools:
            body["tools"] = list(tools)
        temperature = settings.temperature if settings.temperature is not None else self._settings.temperature
        if temperature is not None:
            body["temperature"] = temperature
        if settings.max_tokens is not None:
            # OpenAI has renamed the key; the servers that follow its protocol know the old one.
            key = "max_completion_tokens" if "//api.openai.com" in self._url else "max_tokens"
            body[key] = settings.max_tokens
        if settings.json_output:
            body["response_format"] = {"type": "json_object"}
        return body

    async def _request(self, body: Mapping[str, Any], deadlines: _Deadlines) -> aiohttp.ClientResponse:
        """The response with status 200, its body unread."""
        import aiohttp

        headers = {"Authorization": f"Bearer {self._settings.api_key}"} if self._settings.api_key else {}
        try:
            async with asyncio.timeout_at(deadlines.next):
                # The key must not follow a redirection to another host.
                response = await self._open_session().post(self._url, json=body, headers=headers, allow_redirects=False)
        except TimeoutError:
            raise deadlines.missed() from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProviderError(f"the model's server at {self._url} cannot be reached: {error}") from error
        if response.status != 200:
            try:
                raise await _refusal(response, deadlines)
            finally:
                response.close()
        return response

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # The deadlines are ours; a limit on connections would make calls wait for one another.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
                connector=aiohttp.TCPConnector(limit=0),
            )
        return self._session


@dataclass(slots=True)
class _Deadlines:
    """Instants of the loop's clock."""

    first_token: float
    total: float
    answered: bool = False

    @classmethod
    def begin(cls, settings: ProviderSettings) -> _Deadlines:
        now = asyncio.get_running_loop().time()
        return cls(now + settings.first_token_timeout, now + settings.total_timeout)

    @property
    def next(self) -> float:
        return self.total if self.answered else min(self.first_token, self.total)

    def missed(self) -> ProviderTimeout:
        what = "finish its answer" if self.answered else "begin to answer"
        return ProviderTimeout(f"the model's server did not {what} in time")


async def _events(response: aiohttp.ClientResponse, deadlines: _Deadlines) -> AsyncIterator[str]:
    import aiohttp

    parser = EventParser(_EVENT_LIMIT)
    received = 0
    while True:
        try:
            async with asyncio.timeout_at(deadlines.next):
                chunk = await response.content.readany()
            received += len(chunk)
            events = parser.feed(chunk)
        except TimeoutError:
            raise deadlines.missed() from None
        except (aiohttp.ClientError, OSError) as error:
            raise ProviderError(f"the connection to the model's server was cut: {error}") from error
        except ValueError as error:
            raise ProviderError(f"the model's server sent what is no event stream: {error}") from error
        for event in events:
            yield event
        if not chunk:
            return
        if received > _BODY_LIMIT:
            raise ProviderError(f"the model's answer is longer than {_BODY_LIMIT} bytes")


async def _refusal(response: aiohttp.ClientResponse, deadlines: _Deadlines) -> ProviderError:
    """What an HTTP error status means."""
    import aiohttp

    try:
        async with asyncio.timeout_at(deadlines.next):
            body = await response.content.read(_ERROR_BODY_LIMIT)
        reason = _error_text(json.loads(body).get("error"))
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, AttributeError):
        reason = ""
    text = f"the model's server answered {response.status} {response.reason or ''}".rstrip()
    text = f"{text}: {reason}" if reason else text
    log.warning("model_refused", status=response.status, reason=reason)
    if response.status in (408, 504):
        return ProviderTimeout(text)
    return ProviderRefused(text, response.status) if 400 <= response.status < 500 else ProviderError(text)


def _error_text(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or "")[:500]
