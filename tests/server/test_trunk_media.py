"""A trunk's media settings, from the file to the call."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest

from callagent.config import load_config
from callagent.errors import ConfigError
from callagent.legs.sip import TrunkMedia
from callagent.server.listeners import media_settings_of
from callagent.sip import Encryption

TRUNK = '[[sip.trunks]]\nname = "carrier"\nsources = ["192.0.2.0/24"]\n'


def settings(folder: Path, more: str = "") -> Path:
    path = folder / "callagent.toml"
    path.write_text(TRUNK + more)
    return path


def test_every_setting_reaches_the_calls_of_its_trunk(tmp_path: Path) -> None:
    more = (
        'codecs = ["OPUS", "PCMA"]\nencryption = "required"\nmedia_sources = ["198.51.100.0/24"]\nin_band_digits = true'
    )
    media = media_settings_of(load_config(settings(tmp_path, more), {}).sip)
    network = ip_network("198.51.100.0/24")
    assert media("carrier") == TrunkMedia(("OPUS", "PCMA"), Encryption.REQUIRED, (network,), in_band_digits=True)
    assert media("") == media("loopback") == TrunkMedia()


def test_without_settings_encryption_is_allowed_and_every_codec_offered(tmp_path: Path) -> None:
    assert media_settings_of(load_config(settings(tmp_path), {}).sip)("carrier") == TrunkMedia()


@pytest.mark.parametrize("more", ['codecs = ["G729"]', 'encryption = "maybe"', 'media_sources = ["carrier"]'])
def test_a_wrong_setting_is_named(tmp_path: Path, more: str) -> None:
    with pytest.raises(ConfigError, match=more.partition(" ")[0]):
        load_config(settings(tmp_path, more), {})
