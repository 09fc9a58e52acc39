"""What a conversation sends: text messages, e-mails, and what is shown where there is a screen."""

from __future__ import annotations

from typing import Any

from callagent.agents.flows.runtime.effects import Effects
from callagent.agents.flows.runtime.failures import MissingTemplate
from callagent.agents.flows.runtime.messages import SMSTemplate, WebchatInterface


class Messaging:
    """A part of `Conversation`."""

    sms_templates: dict[str, SMSTemplate]
    webchat: WebchatInterface
    attachments: list[Any]
    response_suggestions: list[Any]
    _effects: Effects

    def send_sms(self, to_number: str, from_number: str, content: str, retry_count: int | None = None) -> None:
        self._queue_sms("text", to_number, retry_count, from_number=from_number, content=content)

    def send_sms_template(self, to_number: str, template: str, retry_count: int | None = None) -> None:
        """Raises `MissingTemplate`."""
        if template not in self.sms_templates:
            raise MissingTemplate(f"the project has no SMS template '{template}'")
        sender = self.sms_templates[template].phone_number
        self._queue_sms("template", to_number, retry_count, from_number=sender, template=template)

    def send_whatsapp(
        self, to_number: str, from_number: str, content_id: str, content: str = "", retry_count: int | None = None
    ) -> None:
        self._queue_sms("content", to_number, retry_count, from_number=from_number, content_id=content_id,
                        content=content, whatsapp=True)  # fmt: skip

    def send_content_template(self, messaging_service_id: str, to_number: str, content_id: str, **more: Any) -> None:
        retry_count = more.pop("retry_count", None)
        self._queue_sms("content", to_number, retry_count, messaging_service_id=messaging_service_id,
                        content_id=content_id, **more)  # fmt: skip

    def _queue_sms(self, kind: str, to_number: str, retry_count: int | None, **more: Any) -> None:
        self._effects.sms.append({"kind": kind, "to_number": to_number, "retry_count": retry_count, **more})

    def send_email(self, to: str, body: str, subject: str = "") -> None:
        self._effects.emails.append({"to": to, "subject": subject, "body": body})

    def add_attachments(self, attachments: list[Any]) -> None:
        self.attachments.extend(attachments)

    def set_response_suggestions(self, suggestions: list[Any]) -> None:
        self.response_suggestions = list(suggestions)

    def _take_shown(self) -> dict[str, Any] | None:
        """What is for a screen and was queued in this run."""
        shown = {
            "attachments": self.attachments,
            "suggestions": self.response_suggestions,
            "call_actions": self.webchat.chat_call_actions,
        }
        self.attachments, self.response_suggestions = [], []
        self.webchat.chat_call_actions = []
        return shown if any(shown.values()) else None
