"""Text and WhatsApp messages through Twilio's Messages resource."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass, field

from callagent.agents.flows.messages import MessageFailed, OutgoingMessage
from callagent.agents.flows.senders.http import post


@dataclass(frozen=True, slots=True)
class TwilioSender:
    account_sid: str
    auth_token: str = field(repr=False)
    api_base_url: str = "https://api.twilio.com"

    async def send(self, message: OutgoingMessage) -> str:
        if not message.sender and not message.service:
            raise MessageFailed("the message has no number to be sent from")
        url = f"{self.api_base_url}/2010-04-01/Accounts/{self.account_sid}/Messages.json"
        credentials = b64encode(f"{self.account_sid}:{self.auth_token}".encode()).decode("ascii")
        answer = await post(url, headers={"Authorization": f"Basic {credentials}"}, form=_form(message))
        return str(answer.get("sid") or "")


def _form(message: OutgoingMessage) -> dict[str, str]:
    prefix = "whatsapp:" if message.kind == "whatsapp" else ""
    form = {"To": prefix + message.to.removeprefix(prefix)}
    if message.service:
        form["MessagingServiceSid"] = message.service
    else:
        form["From"] = prefix + message.sender.removeprefix(prefix)
    if message.content_id:
        form["ContentSid"] = message.content_id
        if message.content_variables:
            form["ContentVariables"] = json.dumps(dict(message.content_variables))
    else:
        form["Body"] = message.text
    return form
