"""Messages to and from the world outside a call: text messages, e-mails, opt-outs, events of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.flows.senders.external import (
        MAX_PER_CALL,
        Outside,
        handoff_data,
    )
    from callagent.agents.flows.senders.opt_outs import (
        OptOuts,
    )
    from callagent.agents.flows.senders.outbox import (
        MessageRules,
        MessageSender,
        Outbox,
        plain_list,
        queued_email,
        queued_message,
    )
    from callagent.agents.flows.senders.providers import (
        SmtpSender,
        SmtpSettings,
        TelnyxSender,
        TwilioSender,
    )

_MODULES = {
    "MAX_PER_CALL": "external",
    "MessageRules": "outbox",
    "MessageSender": "outbox",
    "OptOuts": "opt_outs",
    "Outbox": "outbox",
    "Outside": "external",
    "SmtpSender": "providers",
    "SmtpSettings": "providers",
    "TelnyxSender": "providers",
    "TwilioSender": "providers",
    "handoff_data": "external",
    "plain_list": "outbox",
    "queued_email": "outbox",
    "queued_message": "outbox",
}

__all__ = [
    "MAX_PER_CALL",
    "MessageRules",
    "MessageSender",
    "OptOuts",
    "Outbox",
    "Outside",
    "SmtpSender",
    "SmtpSettings",
    "TelnyxSender",
    "TwilioSender",
    "handoff_data",
    "plain_list",
    "queued_email",
    "queued_message",
]

__getattr__ = lazy_exports(__name__, _MODULES)
