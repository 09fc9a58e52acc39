"""Until when a certificate is valid (RFC 5280 §4.1.2.5)."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _UTC_TIME = 0xA0, 0x17


def certificate_end(file: Path) -> datetime:
    """The end of the first certificate of a PEM file. Raises `OSError` and `ValueError`."""
    _, found, rest = file.read_text("ascii", "replace").partition(_BEGIN)
    body, ended, _ = rest.partition(_END)
    if not found or not ended:
        raise ValueError("no certificate is in the file")
    _, certificate, _ = _element(ssl.PEM_cert_to_DER_cert(_BEGIN + body + _END))
    _, fields, _ = _element(certificate)
    tag, _, after_version = _element(fields)
    if tag == _VERSION:
        fields = after_version
    # Serial number, signature algorithm and issuer come before the validity.
    for _ in range(3):
        fields = _element(fields)[2]
    _, validity, _ = _element(fields)
    tag, text, _ = _element(_element(validity)[2])
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Tag and contents of the first element, and what follows it."""
    if len(der) < 2:
        raise ValueError("Certificate is not valid")
    length, start = der[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    return der[0], der[start : start + length], der[start + length :]
