"""The messages of the Session API, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import WSMsgType, web

from callagent.agents.cx import InputRefused, NotFound
from callagent.errors import ProviderError

MAX_REQUEST: Final = 4 * 1024 * 1024
"""A minute of audio in any form."""

_STATUSES: Final[Mapping[int, str]] = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""HTTP status -> the API's own (google.rpc.Code)."""


async def read_request(request: web.Request) -> bytes:
    """The body; the application's own bound is too low for audio."""
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > MAX_REQUEST:
            raise web.HTTPRequestEntityTooLarge(MAX_REQUEST, len(body))
    return bytes(body)


def status_of(error: Exception) -> int:
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, TimeoutError):
        return 504
    return 503 if isinstance(error, ProviderError) else 400


def message_object(message: Any) -> dict[str, Any]:
    if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
        raise InputRefused("a message of JSON is expected")
    try:
        data = json.loads(message.data)
    except (ValueError, RecursionError):
        raise InputRefused("the message is not JSON") from None
    if not isinstance(data, dict):
        raise InputRefused("the message is no object")
    return {_camel(key): camel_keys(value) for key, value in data.items()}


def camel_keys(given: Any) -> Any:
    """Fields of the API may be written in either way; what lies deeper is the client's own or has one word."""
    return {_camel(str(key)): value for key, value in given.items()} if isinstance(given, dict) else given


def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(map(str.capitalize, more))


def refusal(status: int, text: str) -> web.Response:
    return web.json_response(error_message(status, text), status=status)


def refused(status: int, text: str) -> web.HTTPException:
    kinds = {400: web.HTTPBadRequest, 404: web.HTTPNotFound}
    return kinds[status](text=dumps(error_message(status, text)), content_type="application/json")


def error_message(status: int, text: str) -> dict[str, Any]:
    """As the API writes errors (https://cloud.google.com/apis/design/errors)."""
    return {"error": {"code": status, "message": text, "status": _STATUSES[status]}}


def dumps(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)
