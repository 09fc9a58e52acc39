"""The settings, section by section, with their defaults.

All are frozen. `deploy/callagent.toml` has the same settings with comments for operators; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, PrivateAttr, SecretStr, create_model, model_validator

from callagent.config import values
from callagent.models import declarations as model_providers
from callagent.speech.providers import declarations as speech_providers


class Trunk(values.Section):
    """A SIP peer that may call us, that we call through, or both."""

    name: str
    sources: tuple[values.NetworkSetting, ...] = ()
    """Addresses or networks that its signalling comes from."""
    inbound_username: str = ""
    """User name that it proves with `inbound_password` when it calls; without `sources` it may call from anywhere."""
    inbound_password: SecretStr = SecretStr("")
    server: str = ""
    """SIP URI of its registrar and proxy (`sip:sip.carrier.example`), whose addresses may call us, too."""
    username: str = ""
    """Our user name at `server`, with `password`."""
    password: SecretStr = SecretStr("")
    realm: str = ""
    """The only realm (RFC 3261 §22.1) to which we prove our password; empty: the host of `server`."""
    registration: bool = False
    """Whether we register at `server`."""
    keep_alive: float = Field(default=0.0, ge=0)
    """Seconds between OPTIONS to `server`; 0: none."""
    codecs: tuple[Literal["PCMU", "PCMA", "G722", "OPUS"], ...] = ()
    """Codecs in the order in which we offer them; empty: all that are installed."""
    encryption: Literal["off", "allowed", "required"] = "allowed"
    """SRTP with keys in the SDP (RFC 4568); only over TLS, where nobody else reads the keys."""
    media_sources: tuple[values.NetworkSetting, ...] = ()
    """Addresses or networks that its media may come from besides the address in its SDP."""
    in_band_digits: bool = False
    """Whether we send digits as tones in the audio, and read them there even where telephone events (RFC 4733) were
    negotiated. Where none were negotiated, we always read digits in the audio."""
    trusted: bool | None = None
    """Whether its headers P-Asserted-Identity, Diversion, X-… and the like are believed and told to agents. Null: only
    if `sources` or `server` identify it; a password alone is not enough."""
    shared_caller: bool = False
    """Whether many callers have one number, as behind a PBX: `limits.caller_calls…` do not count its calls."""
    calls_per_second: float = Field(default=10, gt=0)
    """Calls that may begin each second, in each direction; one more is answered 503, or not placed."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not (self.sources or self.server or self.inbound_username):
            raise ValueError("a trunk needs 'sources' or 'inbound_username' to be recognised, or 'server' to be called")
        if (self.registration or self.keep_alive) and not self.server:
            raise ValueError("'registration' and 'keep_alive' need 'server', to which their requests are sent")
        # An empty password would let everybody in who knows the name.
        if self.inbound_username and not self.inbound_password.get_secret_value():
            raise ValueError("'inbound_username' needs 'inbound_password', which the trunk proves when it calls")
        return self

    @property
    def is_believed(self) -> bool:
        """Whether its headers about the caller are believed."""
        return bool(self.sources or self.server) if self.trusted is None else self.trusted


class SipSettings(values.Section):
    """How SIP and RTP reach this server, and the trunks."""

    listen: values.AddressSetting = values.Address("127.0.0.1:5060")
    """Where we listen for SIP over UDP."""
    listen_tcp: values.AddressSetting | None = None
    listen_tls: values.AddressSetting | None = None
    certificate: str = ""
    """PEM file for TLS, the whole chain, with `key`; both are read again when they change."""
    key: str = ""
    trusted: str = ""
    """PEM file of the authorities that must have certified the TLS servers that we call; empty: the system's."""
    clients: str = ""
    """PEM file of the authorities that must have certified TLS peers that call us; empty: they need no certificate."""
    realm: str = "callagent"
    """The realm that our challenges name when trunks have to prove their passwords."""
    digest_algorithms: tuple[Literal["SHA-256", "MD5"], ...] = ("SHA-256", "MD5")
    """Algorithms in the order of our challenges. Trunks that know only MD5 and read only the first need `["MD5"]`."""
    enabled: bool = True
    public_host: values.PublicHostSetting = ""
    """The host name or IP address in Contact and Via, to which peers send requests. Empty: `public_address`."""
    public_address: values.PublicAddressSetting = ""
    """The IP address in SDP, to which peers send media. Empty: the address of the socket."""
    rtp_ports: values.PortRangeSetting = (10000, 20000)
    transfer_headers: tuple[values.HeaderNameSetting, ...] = ()
    """Headers that a project may send on a transfer besides `X-…`, `User-to-User`, `Reason` and `Diversion`."""
    trunks: tuple[Trunk, ...] = ()
    """Without any, only this machine (loopback) may call."""

    @model_validator(mode="after")
    def _media_reaches_the_socket(self) -> Self:
        """Check that `public_address` and `listen` have the same IP version."""
        try:
            listening = values.plain_address(self.listen.host)
        except ValueError:
            return self
        # SDP names one address for the media, and an RTP socket has one IP version.
        if self.public_address and values.plain_address(self.public_address).version != listening.version:
            raise ValueError(
                f"sip.public_address '{self.public_address}' is not an IPv{listening.version} address, but sip.listen "
                f"'{self.listen}' is; choose both of one IP version"
            )
        return self


class HttpSettings(values.Section):
    """How the HTTP server is reached, and who may use it without an account of `users`."""

    listen: values.AddressSetting = values.Address("127.0.0.1:8080")
    enabled: bool = True
    public_url: values.UrlSetting = ""
    """The URL at which carriers reach us; their signatures are checked against it, never against a header."""
    certificate: str = ""
    """PEM file for TLS, the whole chain, with `key`; both are read again when they change. Empty: HTTP without TLS."""
    key: str = ""
    metrics_token: SecretStr = SecretStr("")
    """A bearer token that opens `/metrics` and nothing else; empty: only accounts read the metrics."""
    login_header: str = ""
    """The header in which a proxy that logs users in (OIDC) names one of `users`, such as `X-Auth-Request-Email`."""
    login_proxies: tuple[values.NetworkSetting, ...] = ()
    """Addresses or networks of proxies in front of us: only their `login_header` and X-Forwarded-For are believed.
    `connections_per_address` does not limit them; failed logins count for the address that they forward."""
    connections_per_address: int = Field(default=256, ge=1)
    """Connections of one address that have shown no login, token or signature yet; more are closed at once."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.login_header and not self.login_proxies:
            raise ValueError("'login_header' needs 'login_proxies', the proxies whose header is believed")
        # One alone would be ignored, and HTTP served without TLS.
        if bool(self.certificate) != bool(self.key):
            raise ValueError("'certificate' and 'key' go together: name two PEM files, or neither")
        return self


class TwilioSettings(values.Section):
    """The account at the carrier Twilio, with which its webhooks are verified and calls are controlled."""

    account_sid: str = ""
    auth_token: SecretStr = SecretStr("")
    api_base_url: values.UrlSetting = "https://api.twilio.com"


class Number(values.Section):
    """A called number, or a range of them, and the project that answers it."""

    number: str = "*"
    """The number called, in E.164, or the user part of the URI; `*` at the end stands for any rest."""
    project: str = "."
    environment: Literal["draft", "sandbox", "pre-release", "live"] = "sandbox"
    fallback: str = ""
    """Name of a target for calls that the agent cannot go on with."""

    def matches(self, callee: str) -> bool:
        """Return whether this entry is for the called number `callee`."""
        return callee.startswith(self.number[:-1]) if self.number.endswith("*") else callee == self.number


class Target(values.Section):
    """A place that a call may be sent to. No call is sent anywhere else."""

    name: str = ""
    uri: str = ""
    """SIP URI or E.164 number."""
    prefix: str = ""
    """Instead of name and uri: any E.164 number that begins so (`+4420`), except premium, shared-cost, personal,
    pager, company-wide (UAN), satellite, unknown and invalid ones, and +1 numbers outside the US and Canada."""
    headers: Mapping[values.HeaderNameSetting, str] = Field(default_factory=dict)
    """Headers sent with the transfer; a header of the same name from the project replaces one."""
    method: Literal["", "attended", "invite", "refer"] = ""
    """How the call gets there; empty: as the project's handoff says. `refer` asks the caller's phone to call the
    target, `attended` does so once the target has answered us; `invite` calls the target and bridges the two."""
    trunk: str = ""
    """Name of the trunk for our call to it. Empty: a number goes through the caller's trunk, a URI to its host."""
    caller: str = ""
    """The number that the target sees; empty: the caller's."""
    ring_seconds: float = Field(default=30, ge=1, le=180)
    early_media: bool = False
    """Whether the caller hears what the target plays before it answers."""
    whisper: str = ""
    """What the person hears before the caller is put through; only on calls of a carrier that dials for us."""
    confirm: str = Field(default="", pattern=r"^[0-9*#]?$")
    """The key that takes such a call: an answering machine presses none, so no caller is put through to it."""

    @model_validator(mode="after")
    def _has_destination(self) -> Target:
        if bool(self.name and self.uri) == bool(self.prefix):
            raise ValueError("a target needs 'name' and 'uri', or 'prefix' instead")
        return self


class SpeechProviderSettings(values.Section):
    """How one speech provider is reached."""

    api_key: SecretStr = SecretStr("")
    base_url: values.ServerUrlSetting = ""
    """URL of the server; empty: the provider's own. That of a Wyoming server is `tcp://HOST:PORT`."""
    model: str = ""
    voice: str = ""
    """The provider's own name of the voice; empty: a default of ours."""


if TYPE_CHECKING:

    class SpeechProviders(values.Section):
        """A table of settings for each speech provider."""

        def __getattr__(self, name: str) -> SpeechProviderSettings: ...

else:
    # Each provider is declared in its own file; one section is made for each declaration.
    SpeechProviders = create_model(
        "SpeechProviders",
        __base__=values.Section,
        **{one.section: (SpeechProviderSettings, SpeechProviderSettings()) for one in speech_providers().values()},
    )


class SimilarVoice(values.Section):
    """A voice that projects ask for, and similar voices of other providers that may replace it."""

    provider: str
    name: str
    """The voice as the project names it."""
    instead: Mapping[str, str]
    """The name of the similar voice by provider."""


class SpeechSettings(values.Section):
    """How callers are recognised, when their turns end, and which voices speak."""

    recognizer: values.NamesSetting = ("local",)
    """`local`, a provider such as `deepgram` or `deepgram/nova-3`, `script:FILE`, or `none`. When one fails, the next
    one takes over."""
    voice: values.NamesSetting = ("local",)
    providers: SpeechProviders = SpeechProviders()
    voices: tuple[SimilarVoice, ...] = ()
    voice_cache: str = ""
    """Folder for synthesised speech, to play it again without a new request; empty: it is kept in memory only."""
    language: str = "en-US"
    sounds: str = ""
    """Folder of WAV files that agents may name as background track, thinking sound or effect."""
    whisper_dir: str = ""
    """A folder with a Whisper model of CTranslate2 that makes final transcripts instead of the packaged one."""
    endpointing: float = Field(default=0.5, ge=0.1, le=5)
    """Seconds of silence that end the caller's turn."""
    turn_model: str = "none"
    """`smart-turn` judges by the intonation whether the caller has finished; it adjusts the `endpointing` silence."""
    no_input: float = Field(default=7.0, ge=1, le=60)
    """Seconds of silence until the agent asks again."""


class ModelFallback(values.Section):
    """A model that is asked where those before it fail."""

    name: str
    base_url: values.UrlSetting = ""
    """Empty: the provider's."""
    api_key: SecretStr = SecretStr("")


class ModelProviderSettings(values.Section):
    """How one provider of models is reached."""

    base_url: values.UrlSetting = ""
    """Empty: the provider's own."""
    api_key: SecretStr = SecretStr("")


if TYPE_CHECKING:

    class ModelProviders(values.Section):
        """A table of settings for each provider of models."""

        def __getattr__(self, name: str) -> ModelProviderSettings: ...

else:
    ModelProviders = create_model(
        "ModelProviders",
        __base__=values.Section,
        **{name: (ModelProviderSettings, ModelProviderSettings()) for name in model_providers()},
    )


class FunctionGemmaSettings(values.Section):
    """How the function-calling model FunctionGemma is used."""

    fallback: str = "rules"
    """The model that answers where FunctionGemma calls no function: `rules` says the words that the step's prompt has
    after `Otherwise say:`, a larger model its own. Empty: FunctionGemma's own words are spoken."""


class ModelSection(values.Section):
    """The language models of agents."""

    name: str = "rules"
    """`rules`, `embedded`, `PROVIDER/MODEL` (such as `openai/gpt-4.1-mini`), `functiongemma/ENGINE`, `script:FILE`."""
    base_url: values.UrlSetting = ""
    """The server of the model `name`, with `api_key`; empty: the one in `providers`."""
    api_key: SecretStr = SecretStr("")
    providers: ModelProviders = ModelProviders()
    names: Mapping[str, str] = Field(default_factory=dict)
    """The model to use (as in `name`) by the name that projects give it; `*` is for names that are not listed."""
    reasoning_effort: Literal["", "none", "minimal", "low", "medium", "high"] = ""
    temperature: float | None = None
    filler_after: float = Field(default=1.2, ge=0)
    """Seconds of silence after the caller's turn, or within the answer, until a filler ("One moment, please.") is said,
    and again after each 2 s of further silence. A filler of the project takes its place. 0: never."""
    fallback_after: float = Field(default=2.5, gt=0)
    """Seconds without a first token after which the next of `fallbacks` is asked."""
    first_token_timeout: float = Field(default=6.0, gt=0)
    """Seconds without a first token after which an answer has failed if no other model is left to ask."""
    next_token_timeout: float = Field(default=2.0, gt=0)
    """Seconds after a token without the next one until the answer has failed."""
    total_timeout: float = Field(default=30.0, gt=0)
    fallbacks: tuple[ModelFallback, ...] = ()
    functiongemma: FunctionGemmaSettings = FunctionGemmaSettings()


class MessageSettings(values.Section):
    """How text messages and e-mails of projects are sent. If they are not, only the call's record holds them."""

    sms: Literal["record", "twilio", "telnyx"] = "record"
    recipients: tuple[values.RecipientSetting, ...] = ()
    """Recipients besides the caller's own number: numbers in E.164, e-mail addresses, `@example.org` for all addresses
    of a domain, or `any`."""
    telnyx_api_key: SecretStr = SecretStr("")
    telnyx_base_url: values.UrlSetting = "https://api.telnyx.com"
    smtp_host: str = ""
    """Empty: e-mails are kept in the record only."""
    smtp_port: int = Field(default=587, ge=1, le=65535)
    smtp_sender: str = ""
    smtp_user: str = ""
    smtp_password: SecretStr = SecretStr("")
    smtp_encrypted: bool = True


class RecordSettings(values.Section):
    """What is kept of calls, where and for how long."""

    path: str = "var/callagent.db"
    spool: str = ""
    """Folder for records that cannot be written to `path`, on another file system; empty: in the temporary folder."""
    recordings: str = ""
    """Folder for stereo recordings; empty: calls are not recorded."""
    recording_format: Literal["wav", "opus", "mp3"] = "wav"
    """The format into which a recording is converted after its call; all but `wav` need ffmpeg."""
    memory: str = "var/memory"
    """Folder for what a project keeps of a caller for the next call; empty: nothing is kept."""
    database: SecretStr = SecretStr("")
    """URL (`postgresql://…`) of a database to which records are carried from `path`, and where pages read them."""
    redact: tuple[Literal["card", "email", "phone"], ...] = ("card", "email", "phone")
    """What is removed from words and data before they are written; the caller's number is kept."""
    redact_entities: tuple[str, ...] = ()
    """Entities of projects, such as `customer_name`, whose values are removed wherever a record holds them."""
    keep_days: int = Field(default=0, ge=0)
    """Days after which a call is deleted with its recording; 0: never."""
    keep_recording_days: int = Field(default=0, ge=0)
    json_lines: str = ""
    """A file to which the record of every ended call is appended as a line."""


class User(values.Section):
    """An account that may log in. Without any, the user who started the server may, by `callagent login-link`."""

    name: str
    password: SecretStr = SecretStr("")
    """The hash that `callagent password` prints, never the password itself."""
    token: SecretStr = SecretStr("")
    """SHA-256 of a bearer token for programs, in hexadecimal."""
    rights: tuple[Literal["view", "personal", "control", "call", "configure"], ...] = ("view",)


class Webhook(values.Section):
    """A receiver of signed events about calls."""

    url: values.UrlSetting
    secret: SecretStr
    events: tuple[Literal["call.started", "call.ended"], ...] = ("call.started", "call.ended")


class LimitSettings(values.Section):
    """Bounds on what calls, callers and project code may use."""

    calls: int = Field(default=200, ge=1)
    """Calls at the same time; one more is answered 503 with Retry-After."""
    caller_calls: int = Field(default=3, ge=1)
    """Calls of one telephone number (E.164) at the same time; one more is answered 486, or busy. Withheld numbers, SIP
    users that are not telephone numbers and trunks with `shared_caller` are not counted."""
    caller_calls_per_minute: int = Field(default=6, ge=1)
    """Calls of one telephone number that may begin within a minute, counted and answered in the same way."""
    transfers: int = Field(default=3, ge=0)
    """How often the agent of a call may transfer the caller; transfers that failed and refused ones count."""
    messages: int = Field(default=5, ge=0)
    """Text messages and e-mails that one call may send; no call sends more than 50."""
    transfer_attempts: int = Field(default=8, ge=1)
    """Addresses tried for one call of ours to a target: servers, and the addresses to which they redirect us."""
    model_tokens: int = Field(default=1_000_000, ge=1)
    """Tokens of language models, in and out, that one call may use; then it goes to its fallback target, or ends."""
    call_seconds: float = Field(default=3600, ge=10)
    function_seconds: float = Field(default=10, gt=0)
    """Deadline of a function."""
    slow_function_seconds: float = Field(default=30, gt=0)
    """Deadline of a function with latency control, during which the caller hears something."""
    start_function_seconds: float = Field(default=3, gt=0)
    """Seconds that a call rings for its start function; then it is answered although the function still runs."""
    end_function_seconds: float = Field(default=30, gt=0)
    drain_seconds: float = Field(default=600, ge=0)
    worker_memory_mb: int = Field(default=1024, ge=64)
    function_files: int = Field(default=256, ge=1)
    """Files that a call's functions may leave in its private folder."""
    function_disk_mb: int = Field(default=64, ge=1)
    """Size of each file that functions write, and of all that they leave in the call's private folder together."""
    function_network: tuple[values.Port, ...] = (53, 80, 443)
    """TCP ports that functions may connect to, on any host."""
    function_programs: tuple[str, ...] = ()
    """Programs, or folders of programs, that functions and projects' tool servers may start."""


class TelemetrySettings(values.Section):
    """Traces and metrics for OpenTelemetry; they need the extra `otel`."""

    endpoint: values.UrlSetting = ""
    """URL of a collector that takes OTLP over HTTP (`http://127.0.0.1:4318`); empty: nothing is sent."""
    headers: Mapping[str, SecretStr] = Field(default_factory=dict)
    content: bool = False
    """Whether the words of callers and agents are sent, redacted as the records are."""


class LogSettings(values.Section):
    """The server's log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    json_lines: bool | None = None
    """Whether lines are JSON; null: they are unless standard error is a terminal."""


class Config(values.Section):
    """All settings."""

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
    telemetry: TelemetrySettings = TelemetrySettings()
    log: LogSettings = LogSettings()
    function_environment: tuple[str, ...] = ()
    """Names of environment variables that project functions may read."""
    function_secrets: str = ""
    """Folder with a file for each secret that project functions may ask for by its name."""
    _file: str = PrivateAttr(default="")

    @property
    def file(self) -> str:
        """The file that these settings were read from; empty: none."""
        return self._file

    def with_file(self, path: str) -> Self:
        """Return a copy whose `file` is `path`."""
        copy = self.model_copy()
        copy._file = path
        return copy

    @model_validator(mode="after")
    def _fallbacks_are_targets(self) -> Self:
        # Checked at the start, because otherwise the mistake would show only when a call needs its fallback.
        known = {target.name.casefold() for target in self.targets}
        for number in self.numbers:
            if number.fallback and number.fallback.casefold() not in known:
                raise ValueError(f"numbers.fallback '{number.fallback}' is not a target; add it to [[targets]]")
        return self

    @model_validator(mode="after")
    def _targets_have_their_trunks(self) -> Self:
        # A trunk without a server only calls us: there is no address to send a call to.
        known = {trunk.name for trunk in self.sip.trunks if trunk.server}
        for target in self.targets:
            if target.trunk and target.trunk not in known:
                name = target.name or target.prefix
                raise ValueError(
                    f"target '{name}': there is no trunk '{target.trunk}' with 'server'; add it to [[sip.trunks]]"
                )
        return self
