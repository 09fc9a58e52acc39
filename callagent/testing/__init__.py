"""Agents tried without a telephone: conversations as text, test suites with simulated callers, single functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.testing.text_chat import ChatOptions, TextCall, open_text_call, run_chat

_MODULES = {
    "ChatOptions": "text_chat",
    "TextCall": "text_chat",
    "open_text_call": "text_chat",
    "run_chat": "text_chat",
}

__all__ = ["ChatOptions", "TextCall", "open_text_call", "run_chat"]
__getattr__ = lazy_exports(__name__, _MODULES)
