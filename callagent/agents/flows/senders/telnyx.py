"""Text messages through Telnyx's Messages resource."""

from __future__ import annotations

from dataclasses import dataclass, field

from callagent.agents.flows.messages import MessageFailed, OutgoingMessage
from callagent.agents.flows.senders.http import post


@dataclass(frozen=True, slots=True)
class TelnyxSender:
    api_key: str = field(repr=False)
    api_base_url: str = "https://api.telnyx.com"

    async def send(self, message: OutgoingMessage) -> str:
        if message.kind != "sms" or message.content_id:
            raise MessageFailed("content templates and WhatsApp messages are sent through Twilio only")
        if not message.sender:
            raise MessageFailed("the message has no number to be sent from")
        answer = await post(
            f"{self.api_base_url}/v2/messages",
            headers={"Authorization": f"Bearer {self.api_key}"},
            document={"from": message.sender, "to": message.to, "text": message.text},
        )
        data = answer.get("data")
        return str(data.get("id") or "") if isinstance(data, dict) else ""
