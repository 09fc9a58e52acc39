"""Check that a request was signed by Twilio (X-Twilio-Signature) for the public URL in our settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from twilio.request_validator import RequestValidator  # type: ignore[import-untyped]

SIGNATURE_HEADER = "X-Twilio-Signature"


class SignatureChecker:
    """The checker of one account. It knows the configured URL only: a sender chooses Host and X-Forwarded headers."""

    def __init__(self, auth_token: str, public_url: str) -> None:
        parts = urlsplit(public_url)
        if not auth_token:
            # An empty key would make every signature forgeable.
            raise ValueError("Twilio's auth token is not set")
        if parts.scheme not in ("https", "http") or not parts.netloc or parts.query or parts.fragment:
            raise ValueError(f"'{public_url}' is not a public URL such as https://phone.example.com")
        self._auth_token = auth_token
        self._public_url = public_url.rstrip("/")
        self._validator: RequestValidator | None = None

    def url(self, path: str) -> str:
        """Return the public URL of one of our paths."""
        return self._public_url + path

    def stream_url(self, path: str) -> str:
        """Return the public URL of one of our WebSockets."""
        return "ws" + self.url(path).removeprefix("http")

    def signed(self, url: str, form: Mapping[str, str], signature: str) -> bool:
        """Return whether Twilio signed this URL with this form, which is empty for an upgrade."""
        if not signature:
            return False
        if self._validator is None:
            from twilio.request_validator import RequestValidator

            self._validator = RequestValidator(self._auth_token)
        return bool(self._validator.validate(url, form, signature))
