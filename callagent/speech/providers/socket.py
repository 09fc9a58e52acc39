"""Sockets to a provider, and what goes wrong with them as our errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from callagent.errors import ProviderError, ProviderTimeout
from callagent.speech.providers.refusal import refusal

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

MESSAGE_LIMIT = 1 << 20
PING_SECONDS = 5.0
"""A peer that is gone is noticed within two of them."""
CLOSE_SECONDS = 1.0


async def open_socket(who: str, url: str, headers: Mapping[str, str], timeout: float) -> ClientConnection:
    """An open socket. Raises `ProviderRefused`, `ProviderTimeout` or `ProviderError`."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus

    try:
        return await connect(
            url,
            additional_headers=headers,
            open_timeout=timeout,
            close_timeout=CLOSE_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            max_size=MESSAGE_LIMIT,
            # Audio does not get smaller, and compressing it takes the loop's time.
            compression=None,
            proxy=None,
        )
    except InvalidStatus as error:
        answer = error.response
        raise refusal(who, answer.status_code, answer.headers, bytes(answer.body or b"")) from None
    except TimeoutError:
        raise ProviderTimeout(f"{who} did not open a socket within {timeout:g} s") from None
    except (InvalidHandshake, OSError, EOFError, ValueError) as error:
        raise ProviderError(f"{who} cannot be reached: {error}") from error


async def send(who: str, socket: ClientConnection, message: str | bytes) -> None:
    """Raises `ProviderError` where the socket is closed."""
    from websockets.exceptions import ConnectionClosed

    try:
        await socket.send(message)
    except ConnectionClosed as error:
        raise closed(who, error) from None


async def receive(who: str, socket: ClientConnection) -> str | bytes:
    """The next message. Raises `ProviderError` where the socket is closed."""
    from websockets.exceptions import ConnectionClosed

    try:
        return await socket.recv()
    except ConnectionClosed as error:
        raise closed(who, error) from None


class SocketClosed(ProviderError):
    """The provider, or the network, closed the socket."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


def closed(who: str, error: Exception) -> SocketClosed:
    frame = getattr(error, "rcvd", None)
    reason = f"{frame.code} {frame.reason}".strip() if frame else "without a word"
    return SocketClosed(f"{who} closed the socket: {reason}", frame.code if frame else None)
