"""Call control against Twilio's wire protocol on loopback."""

from __future__ import annotations

import pytest

from callagent.carriers.protocol import CallEnded, ControlFailed
from callagent.carriers.twilio.call_control import TwilioApi, TwilioSettings
from tests.carriers.twilio.fake_twilio import ACCOUNT_SID, AUTH_TOKEN, CALL_SID, fake_twilio


def settings(url: str, account_sid: str = ACCOUNT_SID) -> TwilioSettings:
    return TwilioSettings(account_sid, AUTH_TOKEN, "https://phone.example.com", url)


async def test_hang_up_completes_the_call() -> None:
    async with fake_twilio() as twilio:
        control = TwilioApi(settings(twilio.url + "/"))
        await control.hang_up(CALL_SID)
        await control.close()
        assert twilio.requests == [
            (f"/2010-04-01/Accounts/{ACCOUNT_SID}/Calls/{CALL_SID}.json", {"Status": "completed"})
        ]


async def test_redirect_sends_the_twiml() -> None:
    async with fake_twilio() as twilio:
        control = TwilioApi(settings(twilio.url))
        await control.redirect(CALL_SID, "<Response/>")
        await control.close()
        assert twilio.requests[0][1] == {"Twiml": "<Response/>"}


@pytest.mark.parametrize(("status", "code"), [(404, 20404), (400, 21220)])
async def test_a_call_that_is_over_is_told_apart(status: int, code: int) -> None:
    async with fake_twilio() as twilio:
        twilio.status, twilio.code = status, code
        control = TwilioApi(settings(twilio.url))
        with pytest.raises(CallEnded):
            await control.hang_up(CALL_SID)
        await control.close()


async def test_other_refusals_and_a_cut_connection_are_failures() -> None:
    async with fake_twilio() as twilio:
        control = TwilioApi(settings(twilio.url))
        twilio.status, twilio.code = 401, 20003
        with pytest.raises(ControlFailed, match="401"):
            await control.hang_up(CALL_SID)
        twilio.stalls = True
        with pytest.raises(ControlFailed):
            await control.hang_up(CALL_SID)
        await control.close()
    with pytest.raises(ControlFailed):
        await control.hang_up(CALL_SID)
    await control.close()


@pytest.mark.parametrize("call_sid", ["", "CA1", CALL_SID + "/../x", "CB" + CALL_SID[2:], CALL_SID + "\n"])
async def test_a_sid_of_another_form_never_reaches_a_url(call_sid: str) -> None:
    async with fake_twilio() as twilio:
        with pytest.raises(ControlFailed, match="not one of Twilio's"):
            await TwilioApi(settings(twilio.url)).hang_up(call_sid)
        with pytest.raises(ControlFailed, match="not one of Twilio's"):
            await TwilioApi(settings(twilio.url, "AC1?")).hang_up(CALL_SID)
        assert twilio.requests == []


async def test_region_and_edge_of_the_environment_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWILIO_EDGE", "sydney")
    monkeypatch.setenv("TWILIO_REGION", "au1")
    async with fake_twilio() as twilio:
        control = TwilioApi(settings(twilio.url))
        await control.hang_up(CALL_SID)
        await control.close()
        assert len(twilio.requests) == 1


def test_the_secret_is_not_shown() -> None:
    assert AUTH_TOKEN not in repr(TwilioSettings("AC0", AUTH_TOKEN, "https://phone.example.com"))
