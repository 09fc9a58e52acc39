"""How tests get in: the token of a server without accounts, as the command line has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from callagent.sip import TlsContexts, TlsSettings
from callagent.web.access import Access, counted_address
from callagent.web.accounts import Account, Accounts, LocalLogin
from callagent.web.connections import IDLE_SECONDS, LINGER_SECONDS, HttpListener

TOKEN = "the-token-of-the-user-who-started-the-server"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def access_of(accounts: Sequence[Account] = (), **settings: Any) -> Access:
    """With accounts they alone get in, else whoever has `TOKEN`."""
    return Access(Accounts(accounts), None if accounts else LocalLogin(TOKEN), **settings)


@asynccontextmanager
async def listening(
    app: web.Application, access: Access, *, per_address: int = 256, tls: TlsSettings | None = None
) -> AsyncIterator[str]:
    """The application behind the sockets of the server; its URL."""
    times = {"shutdown_timeout": 2.0, "keepalive_timeout": IDLE_SECONDS, "lingering_time": LINGER_SECONDS}
    runner = web.AppRunner(app, access_log=None, **times)
    await runner.setup()
    assert runner.server is not None

    def counted(host: str) -> str | None:
        return None if access.is_proxy(host) else counted_address(host)

    listener = HttpListener(runner.server, counted, per_address, TlsContexts(tls) if tls else None)
    _, port = await listener.listen("127.0.0.1", 0)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        await listener.close()
        await runner.cleanup()
