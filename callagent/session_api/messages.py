"""The JSON of the Session API: request bodies, messages of a socket, and errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import WSMessage, WSMsgType, web

from callagent.agents.cx import InputRefused, NotFound
from callagent.errors import ProviderError

MAX_REQUEST: Final = 4 * 1024 * 1024
"""Bytes of a request: a minute of audio in any form."""

_STATUSES: Final[Mapping[int, str]] = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""HTTP status -> the API's own name for it (google.rpc.Code)."""


async def read_request(request: web.Request) -> bytes:
    """Return the body, up to `MAX_REQUEST`: the application's own bound is too low for audio. Raises 413."""
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > MAX_REQUEST:
            raise web.HTTPRequestEntityTooLarge(MAX_REQUEST, len(body))
    return bytes(body)


def status_of(error: Exception) -> int:
    """Return the HTTP status that tells a client of the error."""
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, TimeoutError):
        return 504
    return 503 if isinstance(error, ProviderError) else 400


def message_object(message: WSMessage) -> dict[str, Any]:
    """Return the fields of a socket's message, in camel case. Raises `InputRefused`."""
    if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
        raise InputRefused("a message should be JSON")
    try:
        data = json.loads(message.data)
    except (ValueError, RecursionError):
        raise InputRefused("the message is not JSON") from None
    if not isinstance(data, dict):
        raise InputRefused("the message should be a JSON object")
    return {_camel(key): camel_keys(value) for key, value in data.items()}


def camel_keys(given: Any) -> Any:
    """Return an object with its own field names in camel case, as the API also takes snake case.

    Deeper names are the client's own or have one word.
    """
    return {_camel(str(key)): value for key, value in given.items()} if isinstance(given, dict) else given


def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(map(str.capitalize, more))


def refusal(status: int, text: str) -> web.Response:
    """Return an error as the response of a handler."""
    return web.json_response(error_message(status, text), status=status)


def refused(status: int, text: str) -> web.HTTPException:
    """Return an error for a handler to raise."""
    kinds = {400: web.HTTPBadRequest, 404: web.HTTPNotFound}
    return kinds[status](text=dumps(error_message(status, text)), content_type="application/json")


def error_message(status: int, text: str) -> dict[str, Any]:
    """Return an error as the API writes it (https://cloud.google.com/apis/design/errors)."""
    return {"error": {"code": status, "message": text, "status": _STATUSES[status]}}


def dumps(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)
