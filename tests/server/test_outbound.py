"""Where a call that we place goes: by name, or by number through a trunk; never by a URI that somebody sent."""

from __future__ import annotations

import pytest

from callagent.config import Config, SipSettings, Target, Trunk
from callagent.errors import CallagentError
from callagent.server.outbound import _dial_uris
from callagent.web.control import DialRequest

CONFIG = Config(
    sip=SipSettings(
        trunks=(
            Trunk(name="in", sources=("192.0.2.1",)),
            Trunk(name="carrier", server="sip:sip.carrier.example;transport=tls"),
        )
    ),
    targets=(
        Target(name="support", uri="sip:support@pbx.example"),
        Target(name="desk", uri="+442079460001"),
        Target(prefix="+44207946"),
    ),
)


@pytest.mark.parametrize(
    ("asked", "way"),
    [
        (DialRequest(target="Support"), ("sip:support@pbx.example", None)),
        (DialRequest(target="support", from_number="+1555"), ("sip:support@pbx.example", "sip:+1555@pbx.example")),
        (DialRequest(target="desk"), ("sip:+442079460001@sip.carrier.example;transport=tls", None)),
        (
            DialRequest(to_number="+442079460777", trunk="carrier", from_number="1000"),
            (
                "sip:+442079460777@sip.carrier.example;transport=tls",
                "sip:1000@sip.carrier.example;transport=tls",
            ),
        ),
    ],
)
def test_the_settings_say_where_a_call_goes(asked: DialRequest, way: tuple[str, str | None]) -> None:
    assert _dial_uris(asked, CONFIG) == way


@pytest.mark.parametrize(
    "asked",
    [
        DialRequest(),
        DialRequest(target="support", to_number="+442079460777"),
        DialRequest(target="nobody"),
        DialRequest(target="sip:root@10.0.0.1"),
        DialRequest(to_number="+19005550100"),
        DialRequest(to_number="+33123456789"),
        DialRequest(to_number="+442079460777", trunk="in"),
        DialRequest(to_number="+442079460777", trunk="none"),
    ],
)
def test_nothing_else_is_called(asked: DialRequest) -> None:
    with pytest.raises(CallagentError):
        _dial_uris(asked, CONFIG)
