"""No key gets into the log, a record or an error's text, whoever repeats it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from callagent import log
from callagent.config import load_config
from callagent.errors import ProviderError, ProviderRefused
from callagent.log import HIDDEN, remember_secrets, scrub
from callagent.models import ModelSettings, ProviderSettings, open_model
from callagent.records import CallRecord, Redaction
from tests.processor_time import processor_seconds

KEY = "tk/live+0123456789 äx"
"""Of no known form, with characters that addresses and JSON write in another manner."""


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    remember_secrets([KEY, "short"])
    yield
    remember_secrets([])


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: abc-123-xyz. You can find your key there.",
        "Authorization: Bearer abc-123-xyz",
        "headers: {'authorization': 'Token abc-123-xyz', 'x': 1}",
        '{"error": {"api_key": "abc-123-xyz"}}',
        r'{"text": "{\"api_key\": \"abc-123-xyz\"}"}',
        "xi-api-key: abc-123-xyz",
        "GET https://api.example.com/v1/speak?model=a&key=abc-123-xyz&b=c failed",
        "https://api.example.com/v1?access_token=abc-123-xyz",
        "postgresql://callagent:abc-123-xyz@db.example.com/calls: connection refused",
        "wss://abc-123-xyz:abc-123-xyz@stream.example.com closed",
        "client_secret=abc-123-xyz",
        "sent Ocp-Apim-Subscription-Key: abc-123-xyz",
    ],
)
def test_keys_are_found_by_what_stands_before_them(text: str) -> None:
    scrubbed = scrub(text)
    assert "abc-123-xyz" not in scrubbed
    assert HIDDEN in scrubbed


@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-AbCdEf0123456789AbCd",
        "sk_0123456789abcdef0123456789abcdef",
        "AIzaSyA0123456789abcdefghijklmnopqrstuv",
        "Bearer 0123456789abcdef0123",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "KEY0123456789ABCDEF0123_abcdefghij",
    ],
)
def test_keys_are_found_by_their_form(key: str) -> None:
    assert key.removeprefix("Bearer ") not in scrub(f"the provider refused {key} today")


@pytest.mark.parametrize(
    "text", [KEY, json.dumps(KEY), "tk%2Flive%2B0123456789%20%C3%A4x", "tk%2Flive%2B0123456789+%C3%A4x"]
)
def test_what_the_settings_hold_is_found_by_its_value(text: str) -> None:
    assert "0123456789" not in scrub(f"refused: {text}!")
    assert scrub(f"refused: {text}!").startswith("refused: ")


@pytest.mark.parametrize(
    "text",
    [
        "the key is under the mat", "press the pound key: then wait", "a token of our thanks", "basic responsibilities",
        "short", "sip:line.two@pbx.example.com:5060", "https://example.com/a?page=2", "my password is what you want",
        "call 555 010 0199", "bearer of good news",
    ],
)  # fmt: skip
def test_other_words_stay(text: str) -> None:
    assert scrub(text) == text


def test_the_time_grows_with_the_text() -> None:
    hostile = ("authorization: bearer " + "a1" * 40 + "key=" + "://" * 30 + "eyJ" * 30 + "sk-") * 60

    once = processor_seconds(lambda: scrub(hostile))
    assert processor_seconds(lambda: scrub(hostile * 8)) < 8 * 6 * once + 0.05


def test_the_settings_secrets_are_remembered_when_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "callagent.toml"
    file.write_text(
        'function_environment = ["BOOKING_API_KEY", "BOOKING_CITY"]\n'
        '[[sip.trunks]]\nname = "carrier"\nserver = "sip:c.example"\npassword = "trunk-password-1"\n'
        '[telemetry]\nheaders = { Authorization = "collector-header-1" }\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOOKING_API_KEY", "booking-key-value")
        patch.setenv("BOOKING_CITY", "Castrop-Rauxel")
        load_config(file, {"DEEPGRAM_API_KEY": "deepgram-key-value"})
    text = scrub("trunk-password-1 collector-header-1 booking-key-value deepgram-key-value Castrop-Rauxel")
    assert text == " ".join([HIDDEN] * 4 + ["Castrop-Rauxel"])


# Where texts end up -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [True, False])
def test_no_key_gets_into_the_log(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    log.configure("info", json=as_json)
    logger = log.get_logger("test")
    try:
        raise ValueError(f"refused {KEY}")
    except ValueError as error:
        try:
            raise ProviderError("no answer") from error
        except ProviderError:
            logger.exception("provider_failed", detail=KEY, headers={"Authorization": f"Bearer {KEY}"})
    log.configure("warning")
    assert "provider_failed" in written.getvalue()
    assert "0123456789" not in written.getvalue()
    if as_json:
        assert json.loads(written.getvalue())["detail"] == HIDDEN


def test_no_key_gets_into_a_record() -> None:
    record = CallRecord(id="c1")
    record.errors = [{"what": "model", "detail": f"refused {KEY}", "at": 1.0}]
    record.signalling = [{"at": "", "sent": True, "peer": "", "line": "", "text": f"INVITE\r\nX-Key: {KEY}\r\n"}]
    kept = json.dumps(Redaction(()).record(record.to_json()), ensure_ascii=False)
    assert HIDDEN in kept
    assert "0123456789" not in kept


@pytest.fixture
async def echoing() -> AsyncIterator[str]:
    """A provider that refuses everything, and repeats what it was sent."""

    async def refuse(request: web.Request) -> web.Response:
        said = f"bad key: {json.dumps(dict(request.headers), ensure_ascii=False)} {request.query_string}"
        return web.json_response({"error": {"message": said}, "detail": said}, status=401)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server: Any = site._server
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await runner.cleanup()


@pytest.mark.parametrize("name", ["openai/gpt-4.1-mini", "anthropic/claude-haiku", "gemini/gemini-flash"])
async def test_no_key_gets_into_the_error_of_a_provider_that_repeats_it(name: str, echoing: str) -> None:
    key = "live_0123456789_of_no_known_form"
    remember_secrets([key])
    model = open_model(name, ProviderSettings(base_url=echoing, api_key=key))
    try:
        with pytest.raises(ProviderRefused) as refused:
            async for _ in model.stream([{"role": "user", "content": "Hello"}], [], ModelSettings()):
                pass
    finally:
        await model.close()
    assert HIDDEN in str(refused.value)
    assert key not in str(refused.value)
