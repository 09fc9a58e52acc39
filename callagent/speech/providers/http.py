"""Requests to a provider, and what goes wrong with them as our errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from callagent.errors import ProviderError, ProviderTimeout
from callagent.speech.providers.refusal import refusal
from callagent.speech.providers.settings import SpeechProvider

if TYPE_CHECKING:
    import aiohttp

_ERROR_BODY_LIMIT = 4096
_NOT_AUDIO = ("text/", "application/json", "application/xml", "application/problem+json")


class ProviderClient:
    """One provider's HTTP connections; `close()` ends them."""

    def __init__(self, who: str, settings: SpeechProvider) -> None:
        self._who = who
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def audio(self, url: str, headers: Mapping[str, str], limit: int, **body: Any) -> AsyncIterator[bytes]:
        """The bytes of an audio answer as they come. Raises `ProviderError`, also for what is no audio or too much."""
        async with self._post(url, headers, body) as (response, deadline):
            if response.content_type.startswith(_NOT_AUDIO):
                raise ProviderError(f"{self._who} answered with {response.content_type} instead of audio")
            received = 0
            async for part in self._parts(response, deadline):
                received += len(part)
                if received > limit:
                    raise ProviderError(f"{self._who} sent more than {limit} bytes of audio")
                yield part
        if not received:
            raise ProviderError(f"{self._who} sent no audio")

    async def lines(self, url: str, headers: Mapping[str, str], limit: int, **body: Any) -> AsyncIterator[bytes]:
        """The lines of an answer, empty ones left out. Raises `ProviderError`, also for a line beyond `limit`."""
        async with self._post(url, headers, body) as (response, deadline):
            rest = bytearray()
            async for part in self._parts(response, deadline):
                *lines, tail = (rest + part).split(b"\n")
                rest = bytearray(tail)
                if len(rest) > limit:
                    raise ProviderError(f"{self._who} sent a line of more than {limit} bytes")
                for line in filter(None, map(bytes, lines)):
                    yield line
        if rest.strip():
            yield bytes(rest)

    async def body(self, url: str, headers: Mapping[str, str], limit: int, **body: Any) -> bytes:
        """A whole answer. Raises `ProviderError`."""
        whole = bytearray()
        async with self._post(url, headers, body) as (response, deadline):
            async for part in self._parts(response, deadline):
                whole += part
                if len(whole) > limit:
                    raise ProviderError(f"{self._who} answered with more than {limit} bytes")
        return bytes(whole)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _post(
        self, url: str, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, float]]:
        """The response with status 200, its body unread, and when it has to be over."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._settings.total_timeout
        # The key must not follow a redirection to another host.
        asked = self._open_session().post(url, headers=headers, allow_redirects=False, **body)
        response = await self._wait(asked, clock() + self._settings.connect_timeout, "answer")
        try:
            if response.status != 200:
                text = await self._wait(response.content.read(_ERROR_BODY_LIMIT), deadline, "say why it refused")
                raise refusal(self._who, response.status, response.headers, text)
            yield response, deadline
        finally:
            # A body that was not read to its end is no use to the next request.
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def _parts(self, response: aiohttp.ClientResponse, deadline: float) -> AsyncIterator[bytes]:
        while part := await self._wait(response.content.readany(), deadline, "finish"):
            yield part

    async def _wait(self, asked: Any, deadline: float, what: str) -> Any:
        import aiohttp

        try:
            async with asyncio.timeout_at(deadline):
                return await asked
        except TimeoutError:
            raise ProviderTimeout(f"{self._who} did not {what} in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProviderError(f"{self._who} cannot be reached, or the connection was cut: {error}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # The deadlines are ours; a limit on connections would make calls wait for one another.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            )
        return self._session
