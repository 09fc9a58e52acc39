"""One POST to a messaging provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callagent.agents.flows.messages import MessageFailed

REQUEST_SECONDS = 10.0
_SHOWN = 300
"""Characters of a provider's complaint that are kept."""


async def post(
    url: str,
    *,
    headers: Mapping[str, str],
    form: Mapping[str, str] | None = None,
    document: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The JSON object of the answer. Raises `MessageFailed`; 429, 5xx and a lost connection are temporary."""
    from aiohttp import ClientError, ClientSession, ClientTimeout

    try:
        async with (
            ClientSession(timeout=ClientTimeout(total=REQUEST_SECONDS)) as session,
            session.post(url, headers=headers, data=form, json=document, allow_redirects=False) as answer,
        ):
            text, status = await answer.text(), answer.status
            found = await answer.json(content_type=None) if status < 300 else None
    except (ClientError, OSError, TimeoutError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise MessageFailed(f"the provider could not be asked: {reason}", temporary=True) from None
    if not isinstance(found, dict):
        temporary = status == 429 or status >= 500
        raise MessageFailed(f"the provider answered {status}: {text[:_SHOWN]}", temporary=temporary)
    return found
