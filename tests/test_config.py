from __future__ import annotations

from pathlib import Path

import pytest

from callagent.config import Number, load_config, override
from callagent.errors import ConfigError
from callagent.server.listeners import SipAdmission
from callagent.server.speech import speech_options


def write(folder: Path, text: str) -> Path:
    path = folder / "callagent.toml"
    path.write_text(text)
    return path


def test_without_a_file_only_loopback_may_call() -> None:
    config = load_config(None, {})
    assert SipAdmission(config.sip).admit("127.0.0.1") == "loopback"
    assert SipAdmission(config.sip).admit("::ffff:127.0.0.1") == "loopback"
    assert SipAdmission(config.sip).admit("192.0.2.1") is None
    assert config.http.listen.host == "127.0.0.1"
    assert config.targets == ()


def test_a_trunk_lets_its_networks_in_and_nobody_else(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, '[[sip.trunks]]\nname = "a"\nsources = ["192.0.2.0/24", "2001:db8::1"]\n'), {})
    assert SipAdmission(config.sip).admit("192.0.2.77") == "a"
    assert SipAdmission(config.sip).admit("2001:db8::1") == "a"
    assert SipAdmission(config.sip).admit("198.51.100.1") is None
    assert SipAdmission(config.sip).admit("127.0.0.1") is None


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('[sip]\nlisen = "127.0.0.1:1"\n', 2, ["unknown setting 'sip.lisen'", "did you mean 'listen'?"]),
        ('[sip]\n\nlisten = "here"\n', 3, ["'here' is not HOST:PORT"]),
        ('[[sip.trunks]]\nname = "a"\nsources = ["x"]\n', 3, ["'x' is not an address or network"]),
        ("[limits]\ncalls = 0\n", 2, ["limits.calls", "greater than or equal to 1"]),
        ('[sip]\nrtp_ports = "20000-10000"\n', 2, ["not a range"]),
    ],
)
def test_a_bad_setting_is_named_with_file_line_and_remedy(
    tmp_path: Path, text: str, line: int, words: list[str]
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    assert str(caught.value).startswith(f"{path}:{line}: ")
    for word in words:
        assert word in str(caught.value)


def test_broken_toml_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"callagent\.toml: not valid TOML: .*line 1"):
        load_config(write(tmp_path, "[sip\n"), {})


def test_the_environment_overrides_one_key_and_is_named_when_wrong() -> None:
    assert load_config(None, {"CALLAGENT_SIP__LISTEN": "127.0.0.1:5070"}).sip.listen.port == 5070
    with pytest.raises(ConfigError, match="environment variable CALLAGENT_SIP__LISTEN"):
        load_config(None, {"CALLAGENT_SIP__LISTEN": "x"})


def test_secrets_come_by_their_usual_names_and_never_show(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hidden-token\n")
    config = load_config(None, {"TWILIO_AUTH_TOKEN_FILE": str(tmp_path / "token"), "OPENAI_API_KEY": "hidden-key"})
    assert config.twilio.auth_token.get_secret_value() == "hidden-token"
    assert "hidden" not in repr(config)


def test_dotenv_is_read_beside_the_file_and_the_environment_wins(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY='from-file'\n# TWILIO_AUTH_TOKEN=no\n")
    path = write(tmp_path, "")
    assert load_config(path, {}).model.providers.openai.api_key.get_secret_value() == "from-file"
    assert (
        load_config(path, {"OPENAI_API_KEY": "from-env"}).model.providers.openai.api_key.get_secret_value()
        == "from-env"
    )


def test_override_checks_what_it_is_given() -> None:
    config = load_config(None, {})
    assert override(config, {"sip.listen": "127.0.0.1:0", "http.enabled": False}).sip.listen.port == 0
    with pytest.raises(ConfigError, match="not HOST:PORT"):
        override(config, {"sip.listen": "nonsense"})


def test_a_number_matches_itself_or_its_beginning() -> None:
    assert Number(number="+1555*").matches("+15550100")
    assert not Number(number="+1555").matches("+15550100")
    assert Number().matches("anything")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('"deepgram"', ("deepgram",)),
        ('"deepgram, local"', ("deepgram", "local")),
        ('["deepgram/nova-3", "script:a,b.yaml"]', ("deepgram/nova-3", "script:a,b.yaml")),
        ('"script:a,b.yaml"', ("script:a,b.yaml",)),
    ],
)
def test_a_recogniser_is_one_name_or_several(tmp_path: Path, text: str, names: tuple[str, ...]) -> None:
    config = load_config(write(tmp_path, f"[speech]\nrecognizer = {text}\n"), {})
    assert config.speech.recognizer == names
    assert config.speech.voice == ("local",)
    assert override(config, {"speech.voice": "none"}).speech.voice == ("none",)


def test_speech_keys_come_by_their_usual_names(tmp_path: Path) -> None:
    variables = {"DEEPGRAM_API_KEY": "d", "OPENAI_API_KEY": "o", "AZURE_SPEECH_KEY": "a", "AZURE_SPEECH_REGION": "x"}
    config = load_config(write(tmp_path, '[speech.providers.deepgram]\nmodel = "nova-2"\n'), variables)
    providers = config.speech.providers
    assert providers.deepgram.model == "nova-2"
    assert providers.deepgram.api_key.get_secret_value() == "d"
    assert (
        providers.openai.api_key.get_secret_value() == config.model.providers.openai.api_key.get_secret_value() == "o"
    )
    assert providers.azure.base_url == "https://x.tts.speech.microsoft.com"
    assert "'d'" not in repr(config)


def test_voices_that_stand_for_others(tmp_path: Path) -> None:
    text = '[[speech.voices]]\nprovider = "elevenlabs"\nname = "xyz"\ninstead = {cartesia = "abc"}\n'
    config = load_config(write(tmp_path, text), {})
    assert speech_options(config.speech).voice_names.name_at("cartesia", "ElevenLabs/xyz") == "abc"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[speech.providers.deepgramm]\nmodel = "x"\n', ["unknown setting", "did you mean 'deepgram'?"]),
        ('[speech.providers.deepgram]\nmodle = "x"\n', ["unknown setting", "did you mean 'model'?"]),
        ('[speech]\nproviders = "deepgram"\n', ["speech.providers"]),
        ("[speech]\nrecognizer = []\n", ["speech.recognizer"]),
        ('[[speech.voices]]\nprovidr = "x"\n', ["did you mean 'provider'?"]),
    ],
)
def test_bad_speech_settings_are_named(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text), {"DEEPGRAM_API_KEY": "d"})
    for word in words:
        assert word in str(caught.value)


def test_a_fallback_is_one_of_the_targets(tmp_path: Path) -> None:
    path = tmp_path / "callagent.toml"
    path.write_text('[[numbers]]\nfallback = "reception"\n')
    with pytest.raises(ConfigError, match=r"numbers\.fallback 'reception' is not a target"):
        load_config(path, {})
    path.write_text(
        '[[numbers]]\nfallback = "Reception"\n[[targets]]\nname = "reception"\nuri = "sip:reception@192.0.2.1"\n'
    )
    assert load_config(path, {}).numbers[0].fallback == "Reception"


@pytest.mark.parametrize(
    ("sip", "words"),
    [
        ('public_address = "phone.example.com"', ["'phone.example.com' is not an IP", "public_host"]),
        ('public_address = "0.0.0.0"', ["'0.0.0.0' is not an address that peers can send to"]),
        ('public_address = "224.0.0.1"', ["'224.0.0.1' is not an address that peers can send to"]),
        ('public_address = "2001:db8::1"', ["sip.public_address '2001:db8::1' is not an IPv4 address"]),
        ('public_host = "sip:phone.example.com"', ["sip.public_host", "'sip:phone.example.com' is not a host name"]),
        ('public_host = "phone.example.com:5060"', ["sip.public_host", "without a port"]),
        ('public_host = "phone example"', ["sip.public_host"]),
    ],
)  # fmt: skip
def test_public_host_and_public_address_are_checked_at_start(tmp_path: Path, sip: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(write(tmp_path, f'[sip]\nlisten = "0.0.0.0:5060"\n{sip}\n'), {})
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("host", ["phone.example.com", "198.51.100.7", "2001:db8::7", "[2001:db8::7]"])
def test_a_public_host_may_be_a_name_or_an_address(tmp_path: Path, host: str) -> None:
    config = load_config(write(tmp_path, f'[sip]\npublic_host = "{host}"\npublic_address = "198.51.100.7"\n'), {})
    assert config.sip.public_host == host.strip("[]")
    assert config.sip.public_address == "198.51.100.7"
