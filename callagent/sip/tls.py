"""TLS contexts of listening and connecting sockets, and the expiry of a certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from callagent.log import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The files of our certificate and key, and of the authorities that we trust."""

    certificate: Path | None = None
    """PEM file of the whole chain, sent to clients that connect, and to servers that ask for a certificate."""
    key: Path | None = None
    trusted: Path | None = None
    """PEM file of the authorities of servers that we connect to; None: those of the system."""
    clients: Path | None = None
    """PEM file of the authorities of clients that connect to us; None: clients need no certificate."""


class TlsContexts:
    """The TLS contexts, made again when a file has changed; if that fails, the previous ones stay in use."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None
        self._file_times: tuple[int, ...] = ()

    def server(self) -> ssl.SSLContext:
        """Return the next client's context. Raises `OSError` (also `ssl.SSLError`) if the first one cannot be made."""
        self._refresh()
        if self._server is None:
            self._server = self._make_server()
        return self._server

    def client(self) -> ssl.SSLContext:
        """Return the context for the next server that we connect to, whose name is verified. Raises `OSError`."""
        self._refresh()
        if self._client is None:
            self._client = self._make_client()
        return self._client

    def _refresh(self) -> None:
        # Files are compared before each connection, so that a new certificate needs neither a signal nor a restart. The
        # times of four files cost far less than a handshake.
        times = self._read_file_times()
        if times == self._file_times:
            return
        is_first, self._file_times = not self._file_times, times
        if is_first:
            return
        # Both contexts are made before either is replaced: certificate and key are renewed one after the other, and
        # while they do not belong together, the previous contexts stay in use.
        try:
            server = self._make_server() if self._server is not None else None
            client = self._make_client() if self._client is not None else None
        except OSError as error:
            log.error("certificate_not_reloaded", certificate=str(self._settings.certificate), error=str(error))
            return
        self._server, self._client = server, client
        log.info("certificate_reloaded", certificate=str(self._settings.certificate))

    def _read_file_times(self) -> tuple[int, ...]:
        settings = self._settings
        files = (settings.certificate, settings.key, settings.trusted, settings.clients)
        return tuple(_modification_time(file) for file in files if file is not None) or (0,)

    def _make_server(self) -> ssl.SSLContext:
        if self._settings.certificate is None:
            raise OSError("TLS needs a certificate, and the settings name none")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Earlier versions are deprecated (RFC 8996).
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._settings.certificate, self._settings.key)
        # A client without a certificate of these authorities fails in the handshake, before any SIP is read.
        if self._settings.clients is not None:
            context.load_verify_locations(self._settings.clients)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _make_client(self) -> ssl.SSLContext:
        trusted = None if self._settings.trusted is None else str(self._settings.trusted)
        context = ssl.create_default_context(cafile=trusted)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._settings.certificate is not None:
            context.load_cert_chain(self._settings.certificate, self._settings.key)
        return context


def _modification_time(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return -1


_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _UTC_TIME = 0xA0, 0x17


def certificate_end(file: Path) -> datetime:
    """Return when the first certificate of a PEM file expires (RFC 5280 §4.1.2.5). Raises `OSError`, `ValueError`."""
    # The public functions of the standard library read only the certificates of peers.
    _, found, rest = file.read_text("ascii", "replace").partition(_BEGIN)
    body, ended, _ = rest.partition(_END)
    if not found or not ended:
        raise ValueError(f"{file} contains no PEM certificate")
    _, certificate, _ = _split_element(ssl.PEM_cert_to_DER_cert(_BEGIN + body + _END))
    _, fields, _ = _split_element(certificate)
    tag, _, after_version = _split_element(fields)
    if tag == _VERSION:
        fields = after_version
    # Serial number, signature algorithm and issuer come before the validity.
    for _ in range(3):
        fields = _split_element(fields)[2]
    _, validity, _ = _split_element(fields)
    tag, text, _ = _split_element(_split_element(validity)[2])
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


def _split_element(der: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and contents of the first DER element, and what follows it."""
    if len(der) < 2:
        raise ValueError("Certificate is truncated or not in DER")
    length, start = der[1], 2
    # In the long form, the low bits tell how many octets hold the length (X.690 §8.1.3.5).
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    return der[0], der[start : start + length], der[start + length :]
