"""The HTTP side of the server: logins and rights, the API, the dashboard's pages, and helpers for carriers' webhooks.

Importing this package is light: each of its modules, and aiohttp, is imported when one of its names is first used.
"""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.web.access import Access, counted_address, identity_of, require
    from callagent.web.accounts import LINK_SECONDS, Account, Accounts, LocalLogin, Right, hash_password
    from callagent.web.api import Dashboard
    from callagent.web.app import HoldSession, Routes, ServerHooks, TurnWatcher, Utterances, make_app
    from callagent.web.connections import IDLE_SECONDS, LINGER_SECONDS, HttpListener, note_known_peer, read_form
    from callagent.web.control import Controls, DialRefused, DialRequest
    from callagent.web.live import captions_of

_MODULES = {
    "IDLE_SECONDS": "connections",
    "LINGER_SECONDS": "connections",
    "LINK_SECONDS": "accounts",
    "Access": "access",
    "Account": "accounts",
    "Accounts": "accounts",
    "Controls": "control",
    "Dashboard": "api",
    "DialRequest": "control",
    "DialRefused": "control",
    "HoldSession": "app",
    "HttpListener": "connections",
    "LocalLogin": "accounts",
    "Right": "accounts",
    "Routes": "app",
    "ServerHooks": "app",
    "TurnWatcher": "app",
    "Utterances": "app",
    "captions_of": "live",
    "counted_address": "access",
    "hash_password": "accounts",
    "identity_of": "access",
    "make_app": "app",
    "note_known_peer": "connections",
    "read_form": "connections",
    "require": "access",
}

__all__ = [
    "IDLE_SECONDS",
    "LINGER_SECONDS",
    "LINK_SECONDS",
    "Access",
    "Account",
    "Accounts",
    "Controls",
    "Dashboard",
    "DialRefused",
    "DialRequest",
    "HoldSession",
    "HttpListener",
    "LocalLogin",
    "Right",
    "Routes",
    "ServerHooks",
    "TurnWatcher",
    "Utterances",
    "captions_of",
    "counted_address",
    "hash_password",
    "identity_of",
    "make_app",
    "note_known_peer",
    "read_form",
    "require",
]

__getattr__ = lazy_exports(__name__, _MODULES)
