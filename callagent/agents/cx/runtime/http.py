"""`ces_requests`, the HTTP client of an app's code, and the responses of servers and tools."""

from __future__ import annotations

import json as json_library
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

BODY_LIMIT = 16 * 1024 * 1024
"""Bytes of a response."""
TIMEOUT = 30.0
"""Seconds for a request that names none."""


class StatusError(Exception):
    """The status of a response was an error."""

    def __init__(self, status_code: int = 0, reason: str = "") -> None:
        super().__init__(f"{status_code} {reason}".strip())
        self.status_code = status_code
        self.reason = reason


class ExternalResponse:
    """A response of a server, or of a tool that code has called."""

    def __init__(self, text: str = "", status_code: int = 200, reason: str = "") -> None:
        self.text = text
        self.status_code = status_code
        self.reason = reason

    @property
    def ok(self) -> bool:
        return self.status_code < 400

    def json(self) -> Any:
        """Return the text as JSON. Raises ValueError when it is not."""
        return json_library.loads(self.text)

    def raise_for_status(self) -> None:
        """Raise `StatusError` when the status is an error."""
        if not self.ok:
            raise StatusError(self.status_code, self.reason)


class _OnlyWeb(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https addresses only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Requests:
    """HTTP in the manner of the requests library."""

    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(_OnlyWeb)

    def request(self, method: str, url: str, **kwargs: Any) -> ExternalResponse:
        """Send a request with `params`, `data`, `json`, `headers`, `timeout`. Raises OSError without a response."""
        _check_scheme(url)
        params = kwargs.get("params")
        if params:
            joint = "&" if urllib.parse.urlsplit(url).query else "?"
            url = f"{url}{joint}{urllib.parse.urlencode(params, doseq=True)}"
        headers = {str(name): str(value) for name, value in (kwargs.get("headers") or {}).items()}
        body = _body(kwargs.get("data"), kwargs.get("json"), headers)
        asked = urllib.request.Request(url, data=body, headers=headers, method=str(method).upper())
        try:
            with self._opener.open(asked, timeout=_seconds(kwargs.get("timeout"))) as answer:
                return _response(answer)
        except urllib.error.HTTPError as error:
            with error:
                return _response(error)

    def get(self, url: str, params: Any = None, **kwargs: Any) -> ExternalResponse:
        return self.request("GET", url, params=params, **kwargs)

    def post(self, url: str, data: Any = None, json: Any = None, **kwargs: Any) -> ExternalResponse:
        return self.request("POST", url, data=data, json=json, **kwargs)

    def put(self, url: str, data: Any = None, json: Any = None, **kwargs: Any) -> ExternalResponse:
        return self.request("PUT", url, data=data, json=json, **kwargs)

    def patch(self, url: str, data: Any = None, json: Any = None, **kwargs: Any) -> ExternalResponse:
        return self.request("PATCH", url, data=data, json=json, **kwargs)

    def delete(self, url: str, **kwargs: Any) -> ExternalResponse:
        return self.request("DELETE", url, **kwargs)

    def head(self, url: str, **kwargs: Any) -> ExternalResponse:
        return self.request("HEAD", url, **kwargs)

    def options(self, url: str, **kwargs: Any) -> ExternalResponse:
        return self.request("OPTIONS", url, **kwargs)


def _seconds(timeout: Any) -> float:
    """Return the timeout in seconds. Of a pair (connecting, reading) the longer one bounds each wait."""
    given = timeout if isinstance(timeout, tuple | list) else [timeout]
    return max((float(each) for each in given if each), default=TIMEOUT)


def _check_scheme(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme.lower() not in ("http", "https"):
        raise ValueError(f"only http and https addresses can be asked, not '{url}'")


def _body(data: Any, json: Any, headers: dict[str, str]) -> bytes | None:
    kinds = {name.lower() for name in headers}
    if json is not None:
        if "content-type" not in kinds:
            headers["Content-Type"] = "application/json"
        return json_library.dumps(json).encode()
    if isinstance(data, Mapping):
        if "content-type" not in kinds:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        return urllib.parse.urlencode(data, doseq=True).encode()
    return data.encode() if isinstance(data, str) else data


def _response(answer: Any) -> ExternalResponse:
    body = answer.read(BODY_LIMIT + 1)
    if len(body) > BODY_LIMIT:
        raise ValueError(f"the answer has more than {BODY_LIMIT} bytes")
    return ExternalResponse(body.decode("utf-8", "replace"), int(answer.status), str(answer.reason or ""))
