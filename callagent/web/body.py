"""The bodies of requests: JSON, checked against a model, and forms. All are read as UTF-8.

The charset that a request claims is ignored: some of Python's codecs take time that grows with the square of the body
(`punycode`), and the sender may not have been identified yet.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

M = TypeVar("M", bound=BaseModel)


class Body(BaseModel):
    """A request's JSON object; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


async def read_body(request: web.Request, model: type[M]) -> M:
    """Return the body as a model. Raises 400 naming the wrong field, and 415 for another content type."""
    try:
        return model.model_validate(await read_json(request))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        raise web.HTTPBadRequest(text=f"{place}: {first['msg']}") from None


async def read_text(request: web.Request) -> str:
    """Return the body as text. Raises `ValueError` for invalid UTF-8."""
    return (await request.read()).decode()


async def read_form(request: web.Request) -> list[tuple[str, str]]:
    """Return the fields of a form, in their order. Raises 400, and 415 for another content type."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise web.HTTPUnsupportedMediaType(text="the body should be application/x-www-form-urlencoded")
    try:
        return parse_qsl((await read_text(request)).rstrip(), keep_blank_values=True)
    except ValueError:
        raise web.HTTPBadRequest(text="the form is not valid UTF-8") from None


async def read_json(request: web.Request) -> Any:
    """Return the body's JSON. Raises 400, and 415 for another content type."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="the body should be application/json")
    try:
        # A lone surrogate is valid in JSON, but no file or database can store it as text.
        data = json.loads(await read_text(request), parse_constant=_no_constant)
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="the body is not valid JSON") from None
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")
