"""Telephone numbers: their one written form, and why a call to one would cost more than an ordinary call."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_E164 = re.compile(r"\+[1-9][0-9]{6,14}", re.ASCII)
_DIGITS = re.compile(r"\+?[0-9*#]{1,32}", re.ASCII)
_SEPARATORS = re.compile(r"[\s().\-]", re.ASCII)
_PHONE_CONTEXT = re.compile(r";phone-context=(\+[0-9.()\-]+)(?:;|$)", re.IGNORECASE | re.ASCII)

# Satellite networks, international networks and numbers for universal personal or premium services, and the North
# American premium services: refused whatever the metadata says of a number among them.
_REFUSED_PREFIXES: Final = ("+870", "+878", "+881", "+882", "+883", "+888", "+979", "+1900", "+1976")
_PREMIUM_EXCHANGE = re.compile(r"\+1[2-9][0-9]{2}976[0-9]{4}", re.ASCII)
"""976 as the exchange of any North American area code."""
_NORTH_AMERICA: Final = ("US", "CA")


def prepare() -> None:
    """Load the metadata's index, which takes 20 ms, so that no call waits for it."""
    import phonenumbers  # noqa: F401


def e164(number: str) -> str | None:
    """Return a number in E.164, without visual separators or a prefix such as `(0)`; None: it is in another form.

    Only the ASCII form with a leading `+` is taken: every other form leaves open which country is meant.
    """
    import phonenumbers

    plain = _SEPARATORS.sub("", number)
    if not _E164.fullmatch(plain):
        return None
    try:
        parsed = phonenumbers.parse(plain)
    except phonenumbers.NumberParseException:
        return None
    return phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164)


def caller_key(caller: str) -> str | None:
    """Return one key for a caller's number, however it is written; None: it is not in E.164."""
    plain = _SEPARATORS.sub("", caller)
    return e164(caller) or plain if _E164.fullmatch(plain) else None


def comparable_number(destination: str) -> str:
    """Return the number in a destination of any form (E.164, national digits, `tel:`, `sip:` of a number); empty: none.

    It is only compared with numbers of the settings, and never called itself.
    """
    text = unicodedata.normalize("NFKC", destination).strip()
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() == "tel":
        context = _PHONE_CONTEXT.search(rest)
        digits = rest.partition(";")[0]
        text = digits if context is None or digits.startswith("+") else context[1] + digits
    elif colon and scheme.lower() in ("sip", "sips"):
        user, at, host = rest.rpartition("@")
        if not at or not (user.startswith("+") or ";user=phone" in host.lower()):
            return ""
        text = user.partition(";")[0]
    plain = _SEPARATORS.sub("", text)
    return e164(plain) or (plain if _DIGITS.fullmatch(plain) else "")


def surcharge_of(number: str) -> str | None:
    """Return why a call to a number, as `e164` writes it, is not an ordinary one; None: it is."""
    import phonenumbers

    if number.startswith(_REFUSED_PREFIXES):
        return "is of a satellite, premium or international service"
    if _PREMIUM_EXCHANGE.fullmatch(number):
        return "is a premium number (exchange 976)"
    parsed = phonenumbers.parse(number)
    if not phonenumbers.is_valid_number(parsed):
        return "is not a valid number, or of a range that is not known"
    kinds = phonenumbers.PhoneNumberType
    kind = phonenumbers.number_type(parsed)
    names = {
        kinds.PREMIUM_RATE: "premium",
        kinds.SHARED_COST: "shared-cost",
        kinds.PERSONAL_NUMBER: "personal",
        kinds.PAGER: "pager",
        kinds.UAN: "company-wide (UAN)",
        kinds.VOICEMAIL: "voicemail",
    }
    if kind in names:
        return f"is a {names[kind]} number"
    if kind == kinds.UNKNOWN:
        return "is of an unknown kind"
    if parsed.country_code == 1 and phonenumbers.region_code_for_number(parsed) not in _NORTH_AMERICA:
        return "is a +1 number outside the US and Canada"
    return None
