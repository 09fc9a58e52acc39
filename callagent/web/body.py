"""The bodies that requests have: JSON, checked against a model, and forms. All are UTF-8.

A charset that a request claims is not looked at: Python's codecs of seldom names take time that grows with the square
of the body (`punycode`), and whoever sends it may not have shown yet who they are.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

M = TypeVar("M", bound=BaseModel)


class Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


async def read_body(request: web.Request, model: type[M]) -> M:
    """Raises 400 with what is wrong, 415 for what is no JSON."""
    try:
        return model.model_validate(await read_json(request))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        raise web.HTTPBadRequest(text=f"{place}: {first['msg']}") from None


async def read_text(request: web.Request) -> str:
    """Raises `ValueError` for what is no UTF-8."""
    return (await request.read()).decode()


async def read_form(request: web.Request) -> list[tuple[str, str]]:
    """The fields of a form. Raises 400 and 415."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise web.HTTPUnsupportedMediaType(text="the body should be application/x-www-form-urlencoded")
    try:
        return parse_qsl((await read_text(request)).rstrip(), keep_blank_values=True)
    except ValueError:
        raise web.HTTPBadRequest(text="the form is not valid UTF-8") from None


async def read_json(request: web.Request) -> Any:
    """Raises 400 and 415."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="the body should be application/json")
    try:
        # A lone surrogate is JSON, but no text that a file or a database takes.
        data = json.loads(await read_text(request), parse_constant=_no_constant)
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="the body is not valid JSON") from None
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
