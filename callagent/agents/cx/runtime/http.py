"""`ces_requests`, the HTTP client of an app's code, and the responses of servers and tools."""

from __future__ import annotations

import json as json_library
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPMessage, HTTPResponse
from typing import IO, Any

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Size limit of a response's body."""
DEFAULT_TIMEOUT = 30.0
"""Seconds for a request without a timeout of its own."""


class StatusError(Exception):
    """Raised by `raise_for_status` of a response whose status is an error."""

    def __init__(self, status_code: int = 0, reason: str = "") -> None:
        super().__init__(f"{status_code} {reason}".strip())
        self.status_code = status_code
        self.reason = reason


class ExternalResponse:
    """The response of a server, or of a tool that the app's code has called."""

    def __init__(self, text: str = "", status_code: int = 200, reason: str = "") -> None:
        self.text = text
        self.status_code = status_code
        self.reason = reason

    @property
    def ok(self) -> bool:
        return self.status_code < 400

    def json(self) -> Any:
        """Return the value of the text, which is JSON. Raises ValueError if it is not."""
        return json_library.loads(self.text)

    def raise_for_status(self) -> None:
        """Raise `StatusError` when the status is an error."""
        if not self.ok:
            raise StatusError(self.status_code, self.reason)


class _WebRedirectHandler(urllib.request.HTTPRedirectHandler):
    """A handler of redirects that follows them to http and https only; urllib's own would follow one to `ftp:`, too."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


Parameters = Mapping[str, object] | Sequence[tuple[str, object]] | None


class Requests:
    """An HTTP client with the interface of the requests library; arguments not declared here have no effect."""

    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(_WebRedirectHandler)

    def request(
        self,
        method: str,
        url: str,
        *,
        params: Parameters = None,
        data: object = None,
        json: object = None,
        headers: Mapping[str, object] | None = None,
        timeout: object = None,
        **_: object,
    ) -> ExternalResponse:
        """Send a request. Raises OSError if no response comes."""
        _check_scheme(url)
        if params:
            joint = "&" if urllib.parse.urlsplit(url).query else "?"
            url = f"{url}{joint}{urllib.parse.urlencode(params, doseq=True)}"
        # Values may be numbers, which urllib does not accept.
        lines = {str(name): str(value) for name, value in (headers or {}).items()}
        body = _body(data, json, lines)
        request = urllib.request.Request(url, data=body, headers=lines, method=str(method).upper())
        try:
            with self._opener.open(request, timeout=_seconds(timeout)) as answer:
                return _response(answer)
        except urllib.error.HTTPError as error:
            # An error status is a response, too: code checks its status or calls `raise_for_status`.
            with error:
                return _response(error)

    def get(self, url: str, params: Parameters = None, **options: Any) -> ExternalResponse:
        return self.request("GET", url, params=params, **options)

    def post(self, url: str, data: object = None, json: object = None, **options: Any) -> ExternalResponse:
        return self.request("POST", url, data=data, json=json, **options)

    def put(self, url: str, data: object = None, json: object = None, **options: Any) -> ExternalResponse:
        return self.request("PUT", url, data=data, json=json, **options)

    def patch(self, url: str, data: object = None, json: object = None, **options: Any) -> ExternalResponse:
        return self.request("PATCH", url, data=data, json=json, **options)

    def delete(self, url: str, **options: Any) -> ExternalResponse:
        return self.request("DELETE", url, **options)

    def head(self, url: str, **options: Any) -> ExternalResponse:
        return self.request("HEAD", url, **options)

    def options(self, url: str, **options: Any) -> ExternalResponse:
        return self.request("OPTIONS", url, **options)


def _seconds(timeout: object) -> float:
    """Return the timeout in seconds; for a pair (connecting, reading) it is the longer one."""
    timeouts = timeout if isinstance(timeout, tuple | list) else [timeout]
    return max(
        (float(each) for each in timeouts if isinstance(each, str | int | float) and each), default=DEFAULT_TIMEOUT
    )


def _check_scheme(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme.lower() not in ("http", "https"):
        raise ValueError(f"requests can be sent to http and https addresses only, not to '{url}'")


def _body(data: object, json: object, headers: dict[str, str]) -> Iterable[bytes] | bytes | None:
    """Return the body of a request, and add its content type to the headers if they have none."""
    kinds = {name.lower() for name in headers}
    if json is not None:
        if "content-type" not in kinds:
            headers["Content-Type"] = "application/json"
        return json_library.dumps(json).encode()
    if isinstance(data, Mapping):
        if "content-type" not in kinds:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        return urllib.parse.urlencode(data, doseq=True).encode()
    if isinstance(data, str):
        return data.encode()
    if data is None or isinstance(data, Iterable):
        return data
    raise TypeError(f"'data' is {type(data).__name__}; a dictionary, text or bytes are expected")


def _response(answer: HTTPResponse | urllib.error.HTTPError) -> ExternalResponse:
    # Reading one byte more than the limit shows whether the body is too long.
    body = answer.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"the answer has more than {MAX_BODY_BYTES} bytes")
    return ExternalResponse(body.decode("utf-8", "replace"), int(answer.status or 0), str(answer.reason or ""))
