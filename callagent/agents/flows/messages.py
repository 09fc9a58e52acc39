"""Text messages and e-mails of a call: queued by functions, rendered and sent after the turn, kept in the record.

`OptOuts` holds the numbers that opted out of text messages (STOP) and have not opted in again (START).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from callagent.agents.actions import LimitReached
from callagent.errors import CallagentError
from callagent.json_values import JsonObject, MutableJsonObject
from callagent.log import get_logger
from callagent.phone_numbers import comparable_number, e164

log = get_logger(__name__)
MAX_MESSAGES = 50
"""Messages that one call sends at most, whatever `limits.messages` says; refused messages are not counted."""
MAX_REFUSED = 20
"""Refused messages that the record of a call shows."""
MAX_RETRIES = 5
"""Retries that project code may ask for at most."""
DEFAULT_RETRIES = 3
"""Retries where project code asks for no number."""
_ADDRESS = re.compile(r"[^\s@,;:<>\"()]+@[^\s@,;:<>\"()]+")
"""Exactly one e-mail address: a list must not pass as one recipient."""
OPT_OUT_WORDS = frozenset({"stop", "stopall", "unsubscribe", "cancel", "end", "quit", "optout", "revoke"})
"""Twilio's default keywords."""
OPT_IN_WORDS = frozenset({"start", "unstop", "yes"})


class MessageFailed(CallagentError):
    """The provider did not accept the message; `temporary`: another attempt may succeed."""

    def __init__(self, text: str, *, temporary: bool = False) -> None:
        super().__init__(text)
        self.temporary = temporary


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    kind: str
    """`sms`, `whatsapp` or `email`."""
    to: str
    sender: str
    """Number that the message comes from; empty: the provider's default."""
    text: str
    subject: str = ""
    content_id: str = ""
    """Identifier of a content template that is stored at the provider."""
    content_variables: JsonObject = field(default_factory=dict)
    service: str = ""
    """The provider's messaging service, instead of a sender."""


@dataclass(frozen=True, slots=True)
class MessageRules:
    """How many messages a call may send, and to whom besides the caller's own number."""

    per_call: int = 5
    recipients: tuple[str, ...] = ()
    """Numbers, e-mail addresses, `@example.org` for all addresses of a domain, or `any`."""

    def allows(self, to: str, own_number: str | None) -> bool:
        if "any" in self.recipients:
            return True
        if _ADDRESS.fullmatch(to):
            allowed = {each.casefold() for each in self.recipients}
            return to.casefold() in allowed or "@" + to.rpartition("@")[2].casefold() in allowed
        # Numbers are compared in one form: projects write them with spaces, hyphens or `tel:`.
        number = comparable_number(to.removeprefix("whatsapp:"))
        return bool(number) and number in {comparable_number(each) for each in (own_number or "", *self.recipients)}


class MessageSender(Protocol):
    async def send(self, message: OutgoingMessage) -> str:
        """Send a message within a bounded time and return the provider's identifier. Raises `MessageFailed`."""


@dataclass(slots=True)
class Outbox:
    """The messages of one call. Their delivery neither delays a turn nor lets it fail."""

    senders: Mapping[str, MessageSender] = field(default_factory=dict)
    """Kind of message -> its sender; a kind that is not listed is kept in the record only."""
    opted_out: Container[str] = ()
    """Numbers that want no text messages: a message to one is recorded as `opted_out` and not sent."""
    rules: MessageRules = MessageRules()
    own_number: str | None = None
    """Number of the person on the line; None: withheld."""
    sent: list[MutableJsonObject] = field(default_factory=list)
    """Messages as the record shows them, including refused ones."""
    _accepted: int = 0
    _deliveries: set[asyncio.Task[None]] = field(default_factory=set)

    def admit(self, kind: str, to: str) -> LimitReached | None:
        """Count a message against the limits. Return the limit that refuses it, which the record shows, or None."""
        named = f"the {'e-mail' if kind == 'email' else 'text message'} to {to}"
        refused: LimitReached | None = None
        if to and not self.rules.allows(to, self.own_number):
            why = "only the caller's own number and messages.recipients may be written to"
            refused = LimitReached("message_recipients", f"{named} was not sent: {why}")
        elif self._accepted >= self.rules.per_call:
            refused = LimitReached("messages", f"{named} was not sent: limits.messages is {self.rules.per_call}")
        elif self._accepted >= MAX_MESSAGES:
            refused = LimitReached("messages", f"{named} was not sent: a call sends at most {MAX_MESSAGES} messages")
        if refused is None:
            # Counted here and not when sent, so that a turn that queues ten messages cannot exceed the limit.
            self._accepted += 1
        # Only the first refusals are recorded: a function in a loop would fill the record.
        elif sum(entry["status"] == "refused" for entry in self.sent) < MAX_REFUSED:
            log.warning("limit_reached", limit=refused.limit)
            self.sent.append({"kind": kind, "to": to, "text": "", "status": "refused", "detail": refused.detail})
        return refused

    def post(self, message: OutgoingMessage, *, template: str = "", retries: int | None = None) -> None:
        """Begin to send a message; its entry in `sent` is updated with the outcome."""
        entry: MutableJsonObject = {
            "kind": message.kind,
            "to": message.to,
            "from": message.sender,
            "text": message.text,
            "subject": message.subject,
            "template": template,
            "content_id": message.content_id,
            "status": "recorded",
            "detail": "",
        }
        # A safeguard for the record only: `admit` has refused a message beyond the limit, and told the function.
        if sum(each["status"] != "refused" for each in self.sent) >= MAX_MESSAGES:
            log.error("message_refused", kind=message.kind, reason=f"more than {MAX_MESSAGES} messages in one call")
            return
        self.sent.append(entry)
        sender = self.senders.get(message.kind)
        if not message.to:
            entry.update(status="failed", detail="there is no number or address to send it to")
        # Numbers opt out of text messages only: e-mails are always sent.
        elif message.kind != "email" and message.to in self.opted_out:
            entry.update(status="opted_out", detail="the number asked for no more text messages")
        elif sender is not None:
            entry["status"] = "sending"
            # Project code chooses the number of retries, up to MAX_RETRIES.
            attempts = 1 + min(MAX_RETRIES, DEFAULT_RETRIES if retries is None else max(0, retries))
            task = asyncio.create_task(_deliver(sender, message, entry, attempts))
            self._deliveries.add(task)
            task.add_done_callback(self._deliveries.discard)

    async def close(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for messages being sent; those still unanswered count as failed."""
        if self._deliveries:
            # One deadline for all deliveries, because the end of the call waits for them.
            _, late = await asyncio.wait(self._deliveries, timeout=timeout)
            for task in late:
                task.cancel()
        for entry in self.sent:
            if entry["status"] == "sending":
                entry.update(status="failed", detail="the call was over before the provider answered")


async def _deliver(sender: MessageSender, message: OutgoingMessage, entry: MutableJsonObject, attempts: int) -> None:
    """Send a message, with pauses of 1, 1, 2, 3, 5 … seconds between attempts."""
    pause, following = 1, 1
    for attempts_left in range(attempts - 1, -1, -1):
        try:
            identifier = await sender.send(message)
        except MessageFailed as error:
            entry["detail"] = str(error)
            # A refusal that is not temporary would be the same at the next attempt.
            if not error.temporary or not attempts_left:
                break
            await asyncio.sleep(pause)
            pause, following = following, pause + following
        else:
            entry.update(status="sent", detail=identifier)
            return
    entry["status"] = "failed"
    log.warning("message_failed", kind=message.kind, detail=entry["detail"])


def queued_message(entry: JsonObject, text: str) -> OutgoingMessage:
    """Build a text message from an entry of the queue; `text` is already rendered."""
    variables = entry.get("content_variables")
    return OutgoingMessage(
        kind="whatsapp" if entry.get("whatsapp") else "sms",
        to=str(entry.get("to_number") or ""),
        sender=str(entry.get("from_number") or ""),
        text=text,
        content_id=str(entry.get("content_id") or ""),
        content_variables=variables if isinstance(variables, dict) else {},
        service=str(entry.get("messaging_service_id") or ""),
    )


def queued_email(entry: JsonObject) -> OutgoingMessage:
    to, text, subject = (str(entry.get(key) or "") for key in ("to", "body", "subject"))
    return OutgoingMessage("email", to, "", text, subject)


@dataclass(slots=True)
class OptOuts:
    """Numbers that opted out of text messages, in a file of hashed numbers; the last line of a number counts."""

    path: Path | None = None
    """None: opt-outs are forgotten when the server stops."""
    _opted_out: set[str] = field(default_factory=set)
    """Hashes of the numbers."""
    _write_lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        for line in self.path.read_text(encoding="ascii", errors="replace").splitlines():
            self._note(line[1:], out=line.startswith("-"))

    def __contains__(self, number: object) -> bool:
        return _hashed(str(number)) in self._opted_out

    def handle_message(self, number: str, text: str) -> bool:
        """Store an opt-out or opt-in; return whether the text message was one. Blocks: run it in a thread."""
        word = re.sub(r"\W", "", text).lower()
        # The whole message must be the word: "please stop the car" is no opt-out.
        if word not in OPT_OUT_WORDS | OPT_IN_WORDS:
            return False
        out, hashed = word in OPT_OUT_WORDS, _hashed(number)
        # Two messages may arrive at once, each in a thread of its own.
        with self._write_lock:
            self._note(hashed, out=out)
            self._append_line(f"{'-' if out else '+'}{hashed}\n")
        log.info("opt_out_changed", opted_out=out)
        return True

    def _note(self, hashed: str, *, out: bool) -> None:
        (self._opted_out.add if out else self._opted_out.discard)(hashed)

    def _append_line(self, line: str) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self.path.open("a", encoding="ascii") as file:
                # Lines are only appended, so a crash loses one line at most.
                file.write(line)
        except OSError as error:
            log.error("opt_out_not_stored", error=str(error))


def _hashed(number: str) -> str:
    """Return the hash that stands for a number in any form: the file must not tell whose numbers they are."""
    return hashlib.sha256(_international_form(number).encode()).hexdigest()[:40]


def _international_form(number: str) -> str:
    """Return a number in E.164, also one with `00` or nothing in place of `+`; any other text: its digits."""
    plain = comparable_number(number.removeprefix("whatsapp:")) or re.sub(r"[^\d+]", "", number)
    # A carrier may leave out the `+` of a caller's number. Which country a national number is of is not known.
    return e164("+" + plain.removeprefix("+").removeprefix("00")) or plain
