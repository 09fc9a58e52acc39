"""The built-in test phone: calls a server over SIP or a carrier stream, speaks, listens, records."""

from __future__ import annotations

from callagent.phone.command import run_phone

__all__ = ["run_phone"]
