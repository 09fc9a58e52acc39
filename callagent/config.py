"""Settings: callagent.toml, overridden by the environment. Nothing else in callagent reads either.

`CALLAGENT_SECTION__KEY` overrides one key (`CALLAGENT_SIP__LISTEN`). Secrets go by their usual names
(`TWILIO_AUTH_TOKEN`, `OPENAI_API_KEY`), from the environment, from `.env` beside the file, or from the file that
`<NAME>_FILE` names.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator

from callagent.errors import ConfigError

Network = IPv4Network | IPv6Network


class Address(str):
    """`HOST:PORT` or `[HOST]:PORT`."""

    @property
    def host(self) -> str:
        return self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.rpartition(":")[2])


def _address(value: object) -> Address:
    text = str(value)
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"'{text}' is not HOST:PORT")
    return Address(text)


def _network(value: object) -> Network:
    try:
        return ip_network(str(value))
    except ValueError as error:
        raise ValueError(f"'{value}' is not an address or network: {error}") from None


def _port_range(value: object) -> tuple[int, int]:
    if isinstance(value, tuple):
        value = "{}-{}".format(*value)
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", str(value))
    if not match or not 1024 <= int(match[1]) < int(match[2]) <= 65535:
        raise ValueError(f"'{value}' is not a range such as 10000-20000")
    return int(match[1]), int(match[2])


def _url(value: object) -> str:
    text = str(value).rstrip("/")
    if text and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text):
        raise ValueError(f"'{value}' is not a URL such as https://phone.example.com")
    return text


def _plain_address(text: str) -> IPv4Address | IPv6Address:
    """An IPv4 address in IPv6 clothes is the IPv4 address."""
    address = ip_address(text)
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def _names(value: object) -> object:
    """One name, several with commas between them, or a list."""
    if not isinstance(value, str):
        return value
    return (value,) if value.startswith("script:") else tuple(name.strip() for name in value.split(","))


AddressSetting = Annotated[Address, BeforeValidator(_address)]
NamesSetting = Annotated[tuple[str, ...], BeforeValidator(_names), Field(min_length=1)]
UrlSetting = Annotated[str, BeforeValidator(_url)]
NetworkSetting = Annotated[Any, BeforeValidator(_network)]
PortRangeSetting = Annotated[Any, BeforeValidator(_port_range)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Trunk(Section):
    """A peer that may call us, that we call through, or both."""

    name: str
    sources: tuple[NetworkSetting, ...] = ()
    """Addresses or networks its signalling comes from."""
    inbound_username: str = ""
    """With `inbound_password`, what it has to prove when it calls; without `sources` from anywhere."""
    inbound_password: SecretStr = SecretStr("")
    server: str = ""
    """SIP URI of its registrar and proxy (`sip:sip.carrier.example`); its addresses may call us."""
    username: str = ""
    """Ours there, with `password`."""
    password: SecretStr = SecretStr("")
    realm: str = ""
    """The only one that hears our password; empty: the host of `server`."""
    registration: bool = False
    """Whether we register at `server`."""
    keep_alive: float = Field(default=0.0, ge=0)
    """Seconds between OPTIONS to `server`; 0: none."""
    codecs: tuple[Literal["PCMU", "PCMA", "G722", "OPUS"], ...] = ()
    """As they are offered; empty: all that are installed."""
    encryption: Literal["off", "allowed", "required"] = "allowed"
    """SRTP, by keys in the SDP; only over TLS, where nobody else reads them."""
    media_sources: tuple[NetworkSetting, ...] = ()
    """Addresses or networks its media may come from besides the address in its SDP."""
    in_band_digits: bool = False
    """Whether keys are listened for in the audio, for lines without RFC 4733."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not (self.sources or self.server or self.inbound_username):
            raise ValueError("a trunk needs 'sources', 'server' or 'inbound_username'")
        if (self.registration or self.keep_alive) and not self.server:
            raise ValueError("'registration' and 'keep_alive' need 'server'")
        if self.inbound_username and not self.inbound_password.get_secret_value():
            raise ValueError("'inbound_username' needs 'inbound_password'")
        return self

    def comes_from(self, source: str) -> bool:
        address = _plain_address(source)
        return any(address in network for network in self.sources)


class SipSettings(Section):
    listen: AddressSetting = Address("127.0.0.1:5060")
    """UDP."""
    listen_tcp: AddressSetting | None = None
    listen_tls: AddressSetting | None = None
    certificate: str = ""
    """PEM file for TLS, the whole chain, with `key`; both are read again when they change."""
    key: str = ""
    trusted: str = ""
    """PEM file of the authorities of TLS servers that we call; empty: the system's."""
    clients: str = ""
    """PEM file of the authorities of TLS peers that call us; empty: they need no certificate."""
    realm: str = "callagent"
    """Of the passwords that trunks prove to us."""
    digest_algorithms: tuple[Literal["SHA-256", "MD5"], ...] = ("SHA-256", "MD5")
    """Offered in this order; for trunks that know MD5 only and read the first offer only, `["MD5"]`."""
    enabled: bool = True
    public_address: str = ""
    """The host that peers reach us at, written into Contact and SDP. Empty: the address of the socket."""
    rtp_ports: PortRangeSetting = (10000, 20000)
    trunks: tuple[Trunk, ...] = ()
    """None: only this machine (loopback) may call."""

    def admit(self, source: str) -> str | None:
        """The trunk that `source` belongs to; empty: it has to prove one; None: a stranger, who gets no answer."""
        known = [trunk for trunk in self.trunks if trunk.comes_from(source)]
        plain = next((trunk.name for trunk in known if not trunk.inbound_username), None)
        if plain is not None:
            return plain
        if known or any(trunk.inbound_username and not trunk.sources for trunk in self.trunks):
            return ""
        return "loopback" if not self.trunks and _plain_address(source).is_loopback else None


class HttpSettings(Section):
    listen: AddressSetting = Address("127.0.0.1:8080")
    enabled: bool = True
    public_url: UrlSetting = ""
    """The URL that carriers reach us at; their signatures are checked against it, never against a header."""


class TwilioSettings(Section):
    account_sid: str = ""
    auth_token: SecretStr = SecretStr("")
    api_base_url: UrlSetting = "https://api.twilio.com"


class Number(Section):
    """Which project answers which number."""

    number: str = "*"
    """E.164 or user part; `*` at the end matches any rest."""
    project: str = "."
    environment: str = "sandbox"
    fallback: str = ""
    """Name of a target for calls that the agent cannot go on with."""

    def matches(self, callee: str) -> bool:
        return callee.startswith(self.number[:-1]) if self.number.endswith("*") else callee == self.number


class Target(Section):
    """A place that a call may be sent to. There are no others."""

    name: str = ""
    uri: str = ""
    """SIP URI or E.164 number."""
    prefix: str = ""
    """Instead of name and uri: any E.164 number that begins so (`+4420`)."""
    headers: Mapping[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _leads_somewhere(self) -> Target:
        if bool(self.name and self.uri) == bool(self.prefix):
            raise ValueError("a target needs name and uri, or a prefix instead")
        return self


class SpeechProviderSettings(Section):
    """How one speech provider is reached."""

    api_key: SecretStr = SecretStr("")
    base_url: UrlSetting = ""
    """Empty: the provider's own."""
    model: str = ""
    voice: str = ""
    """The provider's own name of the voice; empty: a default of ours."""


class SpeechProviders(Section):
    assemblyai: SpeechProviderSettings = SpeechProviderSettings()
    azure: SpeechProviderSettings = SpeechProviderSettings()
    cartesia: SpeechProviderSettings = SpeechProviderSettings()
    deepgram: SpeechProviderSettings = SpeechProviderSettings()
    elevenlabs: SpeechProviderSettings = SpeechProviderSettings()
    google: SpeechProviderSettings = SpeechProviderSettings()
    openai: SpeechProviderSettings = SpeechProviderSettings()


class VoiceLike(Section):
    """Which voices stand for one that a project asks for."""

    provider: str
    name: str
    """The voice as the project names it."""
    instead: Mapping[str, str]
    """Provider -> its name of a like voice."""


class SpeechSettings(Section):
    recognizer: NamesSetting = ("local",)
    """`local`, a provider such as `deepgram` or `deepgram/nova-3`, `script:FILE`, `none`; of several, the next takes
    over where one fails."""
    voice: NamesSetting = ("local",)
    providers: SpeechProviders = SpeechProviders()
    voices: tuple[VoiceLike, ...] = ()
    voice_cache: str = ""
    """Folder for what was spoken, to be said again without asking a voice; empty: it is kept in memory only."""
    language: str = "en-US"
    whisper_dir: str = ""
    """A CTranslate2 Whisper model directory to use for finals instead of the packaged one."""
    endpointing: float = Field(default=0.5, ge=0.1, le=5)
    """Seconds of silence that end the caller's turn."""
    no_input: float = Field(default=7.0, ge=1, le=60)
    """Seconds of silence until the agent asks again."""


class ModelFallback(Section):
    """A model that is asked where those before it fail."""

    name: str
    base_url: UrlSetting = ""
    """Empty: the provider's."""
    api_key: SecretStr = SecretStr("")


class ModelProviderSettings(Section):
    """How one provider of models is reached."""

    base_url: UrlSetting = ""
    """Empty: the provider's own."""
    api_key: SecretStr = SecretStr("")


class ModelProviders(Section):
    anthropic: ModelProviderSettings = ModelProviderSettings()
    gemini: ModelProviderSettings = ModelProviderSettings()
    openai: ModelProviderSettings = ModelProviderSettings()


class ModelSection(Section):
    name: str = "rules"
    """`rules`, `embedded`, `openai/MODEL`, `anthropic/MODEL`, `gemini/MODEL`, `functiongemma/ENGINE`, `script:FILE`."""
    base_url: UrlSetting = ""
    """Of the server of `name`, with `api_key`; empty: as `providers` say."""
    api_key: SecretStr = SecretStr("")
    providers: ModelProviders = ModelProviders()
    names: Mapping[str, str] = Field(default_factory=dict)
    """A model as projects name it -> as `name` does; `*`: names that are not listed."""
    reasoning_effort: Literal["", "none", "minimal", "low", "medium", "high"] = ""
    temperature: float | None = None
    first_token_timeout: float = Field(default=8.0, gt=0)
    total_timeout: float = Field(default=30.0, gt=0)
    fallbacks: tuple[ModelFallback, ...] = ()


class MessageSettings(Section):
    """How text messages and e-mails of projects are sent; those that are not sent are kept in the call's record."""

    sms: Literal["record", "twilio", "telnyx"] = "record"
    telnyx_api_key: SecretStr = SecretStr("")
    telnyx_base_url: UrlSetting = "https://api.telnyx.com"
    smtp_host: str = ""
    """Empty: e-mails are kept in the record only."""
    smtp_port: int = Field(default=587, ge=1, le=65535)
    smtp_sender: str = ""
    smtp_user: str = ""
    smtp_password: SecretStr = SecretStr("")
    smtp_encrypted: bool = True


class RecordSettings(Section):
    path: str = "var/callagent.db"
    recordings: str = ""
    """Folder for stereo recordings; empty: calls are not recorded."""
    memory: str = "var/memory"
    """Folder for what a project keeps of a caller for the next call; empty: nothing is kept."""
    database: SecretStr = SecretStr("")
    """`postgresql://…`: records are carried there from `path`, and pages read them there."""
    redact: tuple[Literal["card", "email", "phone"], ...] = ("card", "email", "phone")
    """What is taken out of words and data before they are written; the caller's own number is kept."""
    keep_days: int = Field(default=0, ge=0)
    """After so many days a call is deleted with its recording; 0: never."""
    keep_recording_days: int = Field(default=0, ge=0)
    json_lines: str = ""
    """A file that every ended call's record is appended to."""


class User(Section):
    """Who may open the dashboard from elsewhere than this machine."""

    name: str
    password: SecretStr = SecretStr("")
    """As `callagent password` prints it, never the password itself."""
    token: SecretStr = SecretStr("")
    """SHA-256 of a bearer token for programs, in hexadecimal."""
    rights: tuple[Literal["view", "personal", "control"], ...] = ("view",)


class Webhook(Section):
    """Where events are sent, signed."""

    url: UrlSetting
    secret: SecretStr
    events: tuple[Literal["call.started", "call.ended"], ...] = ("call.started", "call.ended")


class LimitSettings(Section):
    calls: int = Field(default=200, ge=1)
    """Calls at a time; one more is answered 503 with Retry-After."""
    call_seconds: float = Field(default=3600, ge=10)
    function_seconds: float = Field(default=10, gt=0)
    """Deadline of a function."""
    slow_function_seconds: float = Field(default=30, gt=0)
    """Deadline of a function with latency control: the caller hears something meanwhile."""
    start_function_seconds: float = Field(default=3, gt=0)
    """Ringing before the call is answered although the start function still runs."""
    end_function_seconds: float = Field(default=30, gt=0)
    drain_seconds: float = Field(default=600, ge=0)
    worker_memory_mb: int = Field(default=1024, ge=64)


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    json_lines: bool | None = None
    """Null: JSON unless standard error is a terminal."""


class Config(Section):
    sip: SipSettings = SipSettings()
    http: HttpSettings = HttpSettings()
    twilio: TwilioSettings = TwilioSettings()
    numbers: tuple[Number, ...] = ()
    targets: tuple[Target, ...] = ()
    speech: SpeechSettings = SpeechSettings()
    model: ModelSection = ModelSection()
    messages: MessageSettings = MessageSettings()
    records: RecordSettings = RecordSettings()
    users: tuple[User, ...] = ()
    webhooks: tuple[Webhook, ...] = ()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    function_environment: tuple[str, ...] = ()
    """Names of environment variables that project functions may read."""


# Pydantic names Python's types; the reader writes TOML.
_SHAPES = {"tuple_type": "should be a list", "model_type": "should be a table", "dict_type": "should be a table"}
_SECRETS = {
    "TWILIO_ACCOUNT_SID": ("twilio", "account_sid"),
    "TWILIO_AUTH_TOKEN": ("twilio", "auth_token"),
    "TELNYX_API_KEY": ("messages", "telnyx_api_key"),
    "CALLAGENT_DATABASE_URL": ("records", "database"),
    "SMTP_PASSWORD": ("messages", "smtp_password"),
}
_MODEL_KEYS = {
    "ANTHROPIC_API_KEY": ("anthropic", "api_key"),
    # Of the two the one that is only for models wins.
    "GOOGLE_API_KEY": ("gemini", "api_key"),
    "GEMINI_API_KEY": ("gemini", "api_key"),
    "OPENAI_API_KEY": ("openai", "api_key"),
    "OPENAI_BASE_URL": ("openai", "base_url"),
}
_SPEECH_KEYS = {
    "ASSEMBLYAI_API_KEY": "assemblyai",
    "AZURE_SPEECH_KEY": "azure",
    "CARTESIA_API_KEY": "cartesia",
    "DEEPGRAM_API_KEY": "deepgram",
    "ELEVENLABS_API_KEY": "elevenlabs",
    "GOOGLE_API_KEY": "google",
    "OPENAI_API_KEY": "openai",
}


def load_config(path: Path | None, environment: Mapping[str, str] | None = None) -> Config:
    """Settings of the file at `path` (none: the defaults) and of the environment.

    Raises `ConfigError` naming file, line and key.
    """
    variables = dict(os.environ if environment is None else environment)
    text = _read(path) if path else ""
    data = _parse(path, text)
    if path:
        variables = {**_dotenv(path.parent / ".env"), **variables}
    _apply_secrets(data, variables)
    overridden = _apply_overrides(data, variables)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, path, text, overridden)) from None


def find_config(project: Path) -> Path | None:
    """The callagent.toml of the current folder, else of the project."""
    for folder in (Path.cwd(), project):
        if (folder / "callagent.toml").is_file():
            return folder / "callagent.toml"
    return None


def function_environment(config: Config) -> dict[str, str]:
    """What project functions see of the environment: the variables that the settings name."""
    return {name: os.environ[name] for name in config.function_environment if name in os.environ}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from None


def _parse(path: Path | None, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _dotenv(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    pairs = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    return {
        key.strip().removeprefix("export "): value.strip().strip("'\"")
        for key, _, value in pairs
        if not key.startswith("#")
    }


def _apply_secrets(data: dict[str, Any], variables: Mapping[str, str]) -> None:
    for name, (section, key) in _SECRETS.items():
        if value := _secret(variables, name):
            data.setdefault(section, {})[key] = value
    for name, provider in _SPEECH_KEYS.items():
        if value := _secret(variables, name):
            _provider(data, "speech", provider)["api_key"] = value
    for name, (provider, key) in _MODEL_KEYS.items():
        if value := _secret(variables, name):
            _provider(data, "model", provider)[key] = value
    if region := variables.get("AZURE_SPEECH_REGION"):
        _provider(data, "speech", "azure").setdefault("base_url", f"https://{region}.tts.speech.microsoft.com")
    trunks = data.get("sip", {}).get("trunks", []) if isinstance(data.get("sip"), dict) else []
    for trunk in (one for one in trunks if isinstance(one, dict)):
        for key in ("password", "inbound_password"):
            # SIP_CARRIER_PASSWORD is the password of the trunk named carrier.
            if value := _secret(variables, re.sub(r"\W", "_", f"SIP_{trunk.get('name', '')}_{key}").upper()):
                trunk[key] = value


def _provider(data: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    """The table `SECTION.providers.NAME`; where the file has something else there, one that nobody reads."""
    place: Any = data
    for part in (section, "providers", name):
        place = place.setdefault(part, {}) if isinstance(place, dict) else {}
    return place if isinstance(place, dict) else {}


def _secret(variables: Mapping[str, str], name: str) -> str | None:
    file = variables.get(f"{name}_FILE")
    return _read(Path(file)).strip() if file else variables.get(name)


def _apply_overrides(data: dict[str, Any], variables: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """Put CALLAGENT_SECTION__KEY into `data`; where each came from, for messages."""
    origin: dict[tuple[str, ...], str] = {}
    for name, value in variables.items():
        if not name.startswith("CALLAGENT_") or "__" not in name:
            continue
        path = tuple(name.removeprefix("CALLAGENT_").lower().split("__"))
        place: Any = data
        for part in path[:-1]:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise ConfigError(f"environment variable {name}: '{'.'.join(path[:-1])}' is no table; set it in the file")
        place[path[-1]] = value
        origin[path] = name
    return origin


def _explain(error: ValidationError, path: Path | None, text: str, overridden: Mapping[tuple[str, ...], str]) -> str:
    lines = []
    for detail in error.errors():
        keys = tuple(str(part) for part in detail["loc"])
        variable = next((name for one, name in overridden.items() if one[: len(keys)] == keys[: len(one)]), None)
        if variable:
            place = f"environment variable {variable}"
        else:
            place = f"{path}:{_line_of(text, keys)}" if path else "command line"
        lines.append(f"{place}: {_complaint(detail['type'], detail['msg'], keys)}")
    return "\n".join(lines)


def _complaint(kind: str, message: str, keys: tuple[str, ...]) -> str:
    setting = ".".join(keys)
    if kind != "extra_forbidden":
        return f"setting '{setting}': {_SHAPES.get(kind) or message.removeprefix('Value error, ')}"
    names = _known_names(keys[:-1])
    close = difflib.get_close_matches(keys[-1], names, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known here: {', '.join(sorted(names))}"
    return f"unknown setting '{setting}'; {hint}"


def _known_names(keys: tuple[str, ...]) -> list[str]:
    model: Any = Config
    tables = {"trunks": Trunk, "numbers": Number, "targets": Target, "users": User, "webhooks": Webhook}
    lists: dict[str, Any] = {"voices": VoiceLike, "fallbacks": ModelFallback}
    for key in keys:
        if not key.isdigit():
            model = tables.get(key) or lists.get(key) or model.model_fields[key].annotation
    return list(model.model_fields)


def _line_of(text: str, keys: tuple[str, ...]) -> int:
    """The line of the setting, as near as text search finds it."""
    names = [key for key in keys if not key.isdigit()]
    start = 0
    if len(names) > 1 and (table := re.search(rf"^\s*\[+{re.escape('.'.join(names[:-1]))}\]", text, re.M)):
        start = table.start()
    wanted = re.compile(rf"^\s*(?:\[+)?(?:[\w.]*\.)?{re.escape(names[-1])}\b", re.M)
    found = wanted.search(text, start) or wanted.search(text)
    return text.count("\n", 0, found.start() + 1 if found else start) + 1


def override(config: Config, changes: Mapping[str, object]) -> Config:
    """`config` with some settings replaced (`{"sip.listen": "127.0.0.1:0"}`). Raises `ConfigError`."""
    data = config.model_dump()
    for setting, value in changes.items():
        section, _, key = setting.rpartition(".")
        data[section][key] = value
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, None, "", {})) from None
