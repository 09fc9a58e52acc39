"""Who sends text messages and e-mails: Twilio, Telnyx, an SMTP server."""

from __future__ import annotations

from callagent.agents.flows.senders.smtp import SmtpSender, SmtpSettings
from callagent.agents.flows.senders.telnyx import TelnyxSender
from callagent.agents.flows.senders.twilio import TwilioSender

__all__ = ["SmtpSender", "SmtpSettings", "TelnyxSender", "TwilioSender"]
