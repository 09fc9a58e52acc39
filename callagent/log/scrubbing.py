"""Removal of keys and passwords from texts that others wrote, before these are logged, recorded or shown.

A provider's error may repeat the key that it refused. Secrets of the settings are found by their values, which are
remembered when the settings are read. Other secrets are found by their form.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "[hidden]"
MIN_SECRET: Final = 8
"""Characters of the shortest secret that is looked for by its value: a shorter one would be found in other words."""

# Every repetition is bounded or cannot overlap with what follows it, so matching takes linear time.
_QUOTE = r"""\\?["']?"""
_VALUE = r"""[^\s"',;&<>\\]{1,4096}"""
_FORMS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        # Headers with credentials, as HTTP libraries and providers write them.
        (
            rf"\b((?:proxy-)?authorization{_QUOTE}\s{{0,3}}[:=]\s{{0,3}}{_QUOTE})"
            rf"(?:(?:basic|bearer|key|token)\s{{1,3}})?{_VALUE}",
            rf"\1{HIDDEN}",
        ),
        (
            rf"\b((?:x-|xi-|x-goog-)?api[-_ ]?key(?:\sprovided)?{_QUOTE}\s{{0,3}}[:=]\s{{0,3}}{_QUOTE}){_VALUE}",
            rf"\1{HIDDEN}",
        ),
        (
            r"\b((?:ocp-apim-)?subscription-key|client[-_]secret|(?:access|refresh|auth|id)[-_]token|password|passwd)"
            rf"({_QUOTE}\s{{0,3}}[:=]\s{{0,3}}{_QUOTE}){_VALUE}",
            rf"\1\2{HIDDEN}",
        ),
        (r"\b(basic|bearer)\s{1,3}(?=[^\s]{0,64}\d)[\w.~+/=-]{16,4096}", rf"\1 {HIDDEN}"),
        # URLs: keys in the query, and user and password before the host.
        (rf"([?&](?:key|token|sig|signature|secret|auth)=){_VALUE}", rf"\1{HIDDEN}"),
        (r"(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@:]{0,256}:[^\s/@]{1,256}@", rf"\1{HIDDEN}@"),
        # Keys of well-known forms, and JSON Web Tokens.
        (r"\bsk[-_][\w-]{16,4096}", HIDDEN),
        (r"\b(?:AIza[\w-]{30,100}|ya29\.[\w-]{16,4096}|AKIA[0-9A-Z]{16}|gh[pousr]_\w{30,255}|KEY[0-9A-F]{16,64}_\w{8,64})",
         HIDDEN),
        (r"\beyJ[\w-]{8,8192}\.[\w-]{8,8192}\.[\w-]{0,8192}", HIDDEN),
    )
)  # fmt: skip

# Every text that a form matches contains one of these; searching for them costs a hundredth of matching the forms.
_HINTS: Final = (
    *("authorization", "key", "secret", "token", "passw", "basic", "bearer", "sig=", "signature=", "auth=", "://"),
    *("sk-", "sk_", "aiza", "ya29.", "akia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "eyj"),
)


class _State:
    secrets: re.Pattern[str] | None = None


_state = _State()


def remember_secrets(secrets: Iterable[str]) -> None:
    """Set the values that `scrub` removes; they replace those that were set before."""
    spellings = {spelling for secret in secrets if len(secret) >= MIN_SECRET for spelling in _spellings(secret)}
    # The first alternative that fits wins, so longer ones come first: one secret may begin with another.
    longest_first = sorted(spellings, key=len, reverse=True)
    _state.secrets = re.compile("|".join(map(re.escape, longest_first))) if spellings else None


def scrub(text: str) -> str:
    """Return the text without keys and passwords."""
    if _state.secrets is not None:
        text = _state.secrets.sub(HIDDEN, text)
    lower = text.lower()
    if not any(hint in lower for hint in _HINTS):
        return text
    for pattern, replacement in _FORMS:
        text = pattern.sub(replacement, text)
    return text


def _spellings(secret: str) -> set[str]:
    """Return the spellings of a secret in plain text, in URLs and in JSON."""
    return {secret, urllib.parse.quote(secret, safe=""), urllib.parse.quote_plus(secret), json.dumps(secret)[1:-1]}
