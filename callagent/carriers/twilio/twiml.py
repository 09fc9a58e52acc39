"""TwiML: the documents that tell Twilio what to do with a call.

Text from outside is escaped and addresses are checked: a number or a header of a project must not become an element.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, assert_never
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from callagent.carriers.protocol import Answer, ConnectStream, Greet, Verdict

E164: Final = re.compile(r"\+[1-9][0-9]{6,14}")
# One address without URI headers. Those are ours to add: a "Replaces" or a second "To" must not come in with the
# address.
_SIP_URI: Final = re.compile(r"sips?:[A-Za-z0-9._~!$&'()*+,;=%-]+@[A-Za-z0-9.:\[\]-]+(;[A-Za-z0-9._~=+-]+)*")
_SIP_HEADER: Final = re.compile(r"(X-[A-Za-z0-9_-]{1,64}|User-to-User)", re.IGNORECASE)
MAX_HEADERS: Final = 1024
"""Characters of custom headers that `<Sip>` accepts, as Twilio documents it."""

NOTHING: Final = '<?xml version="1.0" encoding="UTF-8"?><Response/>'
"""Twilio leaves the call as it is."""
REJECT: Final = '<?xml version="1.0" encoding="UTF-8"?><Response><Reject reason="busy"/></Response>'
"""The caller hears busy and is not charged."""
HANG_UP: Final = '<?xml version="1.0" encoding="UTF-8"?><Response><Hangup/></Response>'


@dataclass(frozen=True, slots=True)
class DialTarget:
    """Where a call is sent: a number in E.164, or a SIP URI with its headers (X-… and User-to-User)."""

    uri: str
    headers: Mapping[str, str]
    caller: str = ""
    """The number that the target sees; empty: Twilio shows the caller's."""
    greeting: str = ""
    """URL of the TwiML that the dialled person hears before the two are joined; empty: none."""
    confirmed: bool = False
    """Whether the answer alone does not count: the person has to press a key."""

    def element(self, report: str) -> str:
        """Return the noun inside `<Dial>`; an answer is reported to the URL `report`. Raises `ValueError`."""
        attributes = "" if self.confirmed else f' statusCallback={quoteattr(report)} statusCallbackEvent="answered"'
        if self.greeting:
            attributes += f" url={quoteattr(self.greeting)}"
        if E164.fullmatch(self.uri):
            return f"<Number{attributes}>{self.uri}</Number>"
        return f"<Sip{attributes}>{escape(self.sip_uri())}</Sip>"

    def sip_uri(self) -> str:
        """Return the SIP URI with its headers. Raises `ValueError`."""
        if not _SIP_URI.fullmatch(self.uri):
            raise ValueError("the target is neither a number in E.164 nor a SIP URI")
        return self.uri + self._query()

    def _query(self) -> str:
        # Twilio carries no other headers. They are left out: a transfer without them is better than none.
        carried = ((name, value) for name, value in self.headers.items() if _SIP_HEADER.fullmatch(name))
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in carried)
        if len(query) > MAX_HEADERS:
            raise ValueError(f"the target's headers are longer than {MAX_HEADERS} characters")
        return f"?{query}" if query else ""


class TwiML:
    """Implements `Markup` with our URLs for one account."""

    content_type = "text/xml"

    def __init__(self, stream_url: str, voice_url: str, greeting_url: str) -> None:
        """Twilio asks `voice_url` what to do when a stream has ended, and sends keys to `greeting_url`."""
        self._stream_url = stream_url
        self._voice_url = voice_url
        self._greeting_url = greeting_url

    def write_document(self, answer: Answer) -> str:
        match answer:
            case Verdict.HANG_UP:
                return HANG_UP
            case Verdict.REJECT:
                return REJECT
            case Verdict.CARRY_ON:
                return NOTHING
            case ConnectStream(token, caller, callee):
                parameters = {"token": token, "from": caller, "to": callee}
                return connect(self._stream_url, parameters, self._voice_url)
            case Greet(text, confirm_key):
                return greet(text, confirm_key, self._greeting_url)
            case _:
                assert_never(answer)


def connect(stream_url: str, parameters: Mapping[str, str], then: str) -> str:
    """Join the caller to our media stream; when its socket closes, Twilio asks `then` what to do."""
    inner = "".join(f"<Parameter name={quoteattr(k)} value={quoteattr(v)}/>" for k, v in parameters.items())
    return (
        '<?xml version="1.0" encoding="UTF-8"?><Response>'
        f"<Connect><Stream url={quoteattr(stream_url)}>{inner}</Stream></Connect>"
        f'<Redirect method="POST">{escape(then)}</Redirect></Response>'
    )


def dial(target: DialTarget, report: str, timeout: int) -> str:
    """Ring the target for `timeout` seconds; answer and end are reported to the URL `report`. Raises `ValueError`."""
    caller = f" callerId={quoteattr(target.caller)}" if target.caller else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?><Response>'
        f'<Dial timeout="{timeout}" answerOnBridge="true"{caller} action={quoteattr(report)} method="POST">'
        f"{target.element(report)}</Dial></Response>"
    )


def refer(target: DialTarget, report: str) -> str:
    """Ask the caller's own SIP system to call the target; for calls that came over SIP. Raises `ValueError`."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?><Response>'
        f'<Refer action={quoteattr(report)} method="POST"><Sip>{escape(target.sip_uri())}</Sip></Refer></Response>'
    )


def conference(room: str, report: str) -> str:
    """Let the caller wait in the conference `room`, which begins when somebody else enters and ends with the caller."""
    rules = 'beep="false" startConferenceOnEnter="false" endConferenceOnExit="true"'
    return (
        '<?xml version="1.0" encoding="UTF-8"?><Response>'
        f'<Dial action={quoteattr(report)} method="POST"><Conference {rules}>{escape(room)}</Conference></Dial>'
        "</Response>"
    )


def greet(text: str, confirm: str, action: str) -> str:
    """Say `text` to the person who was dialled; with `confirm`, the key that they press is sent to `action`."""
    verbs = f"<Say>{escape(text)}</Say>" if text else ""
    if confirm:
        # Without a key in time, the call to the person is ended. An empty `finishOnKey` makes "#" a key like any other.
        gather = f'<Gather numDigits="1" timeout="10" finishOnKey="" action={quoteattr(action)} method="POST">'
        verbs = f"{gather}{verbs}</Gather><Hangup/>"
    return f'<?xml version="1.0" encoding="UTF-8"?><Response>{verbs}</Response>'
