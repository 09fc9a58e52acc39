"""Agent projects: which kind a folder holds, how one is opened, which of them answers which number, and checks."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.agents import AgentProject, CheckReport, Finding
from callagent.agents.adk import adk_runtime, check_adk_imports, check_adk_project, is_adk_project, load_adk_project
from callagent.agents.cx import CxProject, check_cx_app, check_cx_imports, cx_runtime, is_cx_app, load_cx_app
from callagent.agents.flows import (
    ExternalExchange,
    FileMemory,
    FlowSettings,
    MessageRules,
    MessageSender,
    OptOuts,
    check_imports,
    check_project,
    is_flow_project,
    load_flow_project,
    project_runtime,
)
from callagent.agents.tree import TreeSettings
from callagent.config import (
    Config,
    ModelFallback,
    ModelProviderSettings,
    ModelSection,
    Number,
    closed_paths,
    function_environment,
    override,
)
from callagent.errors import ConfigError, ProjectError, UserError, WorkerError
from callagent.log import get_logger
from callagent.models import (
    AnswerTimeouts,
    FailoverModel,
    LanguageModel,
    ModelNames,
    NamedModels,
    ProviderSettings,
    declarations,
    open_embedder,
    open_model,
)
from callagent.workers import ProcessPool, ProjectRuntime, WorkerPool, WorkerSettings, find_programs

if TYPE_CHECKING:
    from callagent.testing import ChatOptions


log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProjectKind:
    """A format of projects: the functions of its package."""

    recognises: Callable[[Path], bool]
    check: Callable[[Path], CheckReport]
    check_imports: Callable[[WorkerPool], Awaitable[CheckReport]]
    """Find problems that show when the project's Python is imported; errors keep the project from being served."""
    runtime: Callable[[Path], ProjectRuntime]
    load: Callable[[Path, LanguageModel, WorkerPool, FlowSettings], AgentProject]
    serves_without_failed_imports: bool = False
    """Whether function files that cannot be imported are only logged at start."""


def _tree_settings(settings: FlowSettings) -> TreeSettings:
    return TreeSettings(function_timeout=settings.function_timeout, models=settings.models)


def _load_tree(path: Path, model: LanguageModel, pool: WorkerPool, settings: FlowSettings) -> AgentProject:
    return load_adk_project(path, model, pool, _tree_settings(settings))


def _load_app(path: Path, model: LanguageModel, pool: WorkerPool, settings: FlowSettings) -> AgentProject:
    return load_cx_app(path, model, pool, replace(_tree_settings(settings), tool_timeout=settings.tool_timeout))


# The order matters: a folder with functions/ is a flow project only if it is no project of the other formats.
KINDS = (
    ProjectKind(is_adk_project, check_adk_project, check_adk_imports, adk_runtime, _load_tree),
    ProjectKind(is_cx_app, check_cx_app, check_cx_imports, cx_runtime, _load_app),
    ProjectKind(is_flow_project, check_project, check_imports, project_runtime, load_flow_project, True),
)

TOOL_SECONDS = 30.0
"""Timeout of an app's tool that the model waits for and that sets none itself; it is the platform's default."""


def open_language_model(config: Config) -> LanguageModel:
    """Return the model that the settings name, with its fallbacks and the models that projects ask for by name.

    Raises `UserError`.
    """
    section = config.model
    first = ModelFallback(name=section.name, base_url=section.base_url, api_key=section.api_key)
    timeouts = AnswerTimeouts(section.fallback_after, section.first_token_timeout, section.next_token_timeout)
    models = [(each.name, _open_one_model(each, section)) for each in (first, *section.fallbacks)]
    model = FailoverModel(models, timeouts) if section.fallbacks else models[0][1]
    others = {name: _open_named_model(name, section) for name in set(section.names.values()) - {section.name}}
    # A name that stands for the configured model is answered by it with its fallbacks, not by a second one without.
    return NamedModels(model, {**others, section.name: model}) if section.names else model


def _open_named_model(name: str, section: ModelSection) -> LanguageModel:
    """Open a model that projects ask for by name. One of the same provider is asked at the same server."""
    if name.partition("/")[0] == section.name.partition("/")[0]:
        return _open_one_model(ModelFallback(name=name, base_url=section.base_url, api_key=section.api_key), section)
    return _open_one_model(ModelFallback(name=name), section)


def _open_one_model(entry: ModelFallback, section: ModelSection) -> LanguageModel:
    kind = entry.name.partition("/")[0]
    own = getattr(section.providers, kind, None) or ModelProviderSettings()
    base_url = entry.base_url or own.base_url
    key = entry.api_key.get_secret_value()
    # A provider's key goes to the provider's server or to the one that the operator put in its place, and never to a
    # fallback at another server.
    if not key and entry.base_url in ("", section.base_url, own.base_url):
        key = own.api_key.get_secret_value()
    settings = ProviderSettings(
        base_url=base_url,
        api_key=key,
        temperature=section.temperature,
        reasoning_effort=section.reasoning_effort,
        first_token_timeout=section.first_token_timeout,
        next_token_timeout=section.next_token_timeout,
        total_timeout=section.total_timeout,
        fallback=_open_larger_model(section) if kind == "functiongemma" else None,
    )
    model = open_model(entry.name, settings)
    provider = declarations().get(kind)
    if provider is not None and not key and provider.needs_key(base_url):
        raise ConfigError(
            f"model '{entry.name}' needs a key: set {provider.keys[0]}, or model.base_url to a server that needs none"
        )
    return model


def _open_larger_model(section: ModelSection) -> LanguageModel | None:
    """Return the model that answers what FunctionGemma leaves to a larger one; None if the settings name none."""
    name = section.functiongemma.fallback
    if name.startswith("functiongemma/"):
        raise ConfigError(f"model.functiongemma.fallback '{name}' is FunctionGemma itself; name another model")
    return _open_one_model(ModelFallback(name=name), section) if name else None


def worker_settings(config: Config, path: Path) -> WorkerSettings:
    """Return what the workers of the project in `path` may use. Raises `ConfigError` for a program that is missing."""
    limits = config.limits
    return WorkerSettings(
        environment=function_environment(config),
        memory=limits.worker_memory_mb << 20,
        file_size=limits.function_disk_mb << 20,
        files=limits.function_files,
        closed=closed_paths(config, path),
        programs=find_programs(limits.function_programs, "limits.function_programs"),
        ports=limits.function_network,
    )


async def open_project(path: Path, model: LanguageModel, config: Config, settings: FlowSettings) -> AgentProject:
    """Open the project in `path` and start its zygote. Raises `ProjectError`."""
    kind = _kind_of(path)
    runtime = kind.runtime(path)
    pool = ProcessPool(runtime, worker_settings(config, runtime.readable))
    try:
        project = kind.load(path, model, pool, settings)
        await pool.start()
        # The project's files and Python are asked for all they declare now, so that no caller waits for it.
        await project.prepare()
        if kind.serves_without_failed_imports:
            await _log_import_failures(kind, pool, project.name)
    except UserError:
        await pool.close()
        raise
    except WorkerError as error:
        await pool.close()
        raise ProjectError(f"the project in {path} cannot be imported: {error}") from None
    return project


async def _log_import_failures(kind: ProjectKind, pool: WorkerPool, name: str) -> None:
    """Log function files that cannot be imported; such a function fails when it is called."""
    for finding in (await kind.check_imports(pool)).warnings:
        log.error("function_not_imported", project=name, file=finding.file, line=finding.line, error=finding.message)


def flow_settings(config: Config, environment: str, external: ExternalExchange | None = None) -> FlowSettings:
    """Return the engine's part of the settings; `external` is shared by all projects of a server."""
    limits = config.limits
    return FlowSettings(
        environment=environment,
        function_timeout=limits.function_seconds,
        slow_function_timeout=limits.slow_function_seconds,
        tool_timeout=_tool_seconds(config),
        end_timeout=limits.end_function_seconds,
        models=ModelNames(config.model.names),
        embedder=open_embedder(),
        secrets_dir=str(Path(config.function_secrets).resolve()) if config.function_secrets else None,
        external=external or ExternalExchange(),
        senders=message_senders(config),
        message_rules=message_rules(config),
        memory=FileMemory(Path(config.records.memory)) if config.records.memory else None,
    )


def _tool_seconds(config: Config) -> float:
    """Return the seconds of a tool without a deadline of its own: the platform's default, or the settings' if less."""
    limits = config.limits
    # Only a value that somebody has set counts: the default of `function_seconds` is for flow projects.
    configured = [limits.function_seconds] if "function_seconds" in limits.model_fields_set else []
    return min(TOOL_SECONDS, limits.slow_function_seconds, *configured)


# Messages -------------------------------------------------------------------------------------------------------------


def message_senders(config: Config) -> dict[str, MessageSender]:
    """Return the sender of each kind of text message and e-mail that the settings name. Raises `ConfigError`.

    Messages of another kind are not sent but kept in the call's record.
    """
    senders: dict[str, MessageSender] = {}
    match config.messages.sms:
        case "twilio":
            twilio = _twilio(config)
            senders |= {"sms": twilio, "whatsapp": twilio}
        case "telnyx":
            senders["sms"] = _telnyx(config)
    if config.messages.smtp_host:
        senders["email"] = _smtp(config)
    return senders


def message_rules(config: Config) -> MessageRules:
    """Return how many messages a call may send, and to whom."""
    return MessageRules(config.limits.messages, config.messages.recipients)


def _twilio(config: Config) -> MessageSender:
    from callagent.agents.flows import TwilioSender

    settings = config.twilio
    token = settings.auth_token.get_secret_value()
    if not settings.account_sid or not token:
        raise ConfigError("messages.sms is 'twilio': set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN")
    return TwilioSender(settings.account_sid, token, settings.api_base_url)


def _telnyx(config: Config) -> MessageSender:
    from callagent.agents.flows import TelnyxSender

    key = config.messages.telnyx_api_key.get_secret_value()
    if not key:
        raise ConfigError("messages.sms is 'telnyx': set TELNYX_API_KEY")
    return TelnyxSender(key, config.messages.telnyx_base_url)


def _smtp(config: Config) -> MessageSender:
    from callagent.agents.flows import SmtpSender, SmtpSettings

    settings = config.messages
    if not settings.smtp_sender:
        raise ConfigError("messages.smtp_host is set: set messages.smtp_sender, the address e-mails come from")
    return SmtpSender(
        SmtpSettings(
            host=settings.smtp_host,
            sender=settings.smtp_sender,
            port=settings.smtp_port,
            user=settings.smtp_user,
            password=settings.smtp_password.get_secret_value(),
            encrypted=settings.smtp_encrypted,
        )
    )


# Numbers --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """The project that answers a call, and its settings for the number that was called."""

    project: AgentProject
    environment: str
    fallback: str = ""
    """Name of the target for callers whom the agent cannot serve any longer; empty: such a call ends."""


class Router:
    """The projects of a server, each opened once for each environment, and which of them answers which number."""

    def __init__(
        self, numbers: Sequence[Number], projects: Mapping[tuple[Path, str], AgentProject], external: ExternalExchange
    ) -> None:
        self._numbers = numbers
        self._projects = projects
        self.external = external
        """Where other programs reach the calls of these projects."""

    @classmethod
    async def open(cls, config: Config, project: Path, model: LanguageModel, stack: AsyncExitStack) -> Router:
        """Open the projects that the settings name; if they name none, `project` for every number.

        Raises `ProjectError`.
        """
        numbers = config.numbers or (Number(project=str(project)),)
        kept = Path(config.records.memory) / "opted_out" if config.records.memory else None
        external = ExternalExchange(opt_outs=OptOuts(kept))
        projects: dict[tuple[Path, str], AgentProject] = {}
        # Numbers that share a project and an environment share its zygote, and what the project keeps of them.
        for number in numbers:
            key = _key(number)
            if key not in projects:
                settings = flow_settings(config, number.environment, external)
                projects[key] = await open_project(Path(number.project), model, config, settings)
                stack.push_async_callback(projects[key].close)
        return cls(numbers, projects, external)

    def route(self, callee: str | None) -> Route | None:
        """Return the route of the first number of the settings that matches; None if nobody answers this number."""
        for number in self._numbers:
            if number.matches(callee or ""):
                project = self._projects[_key(number)]
                return Route(project, number.environment, number.fallback)
        return None

    def project(self, name: str, environment: str) -> AgentProject | None:
        """Return the project of that name in that environment; None if this server does not have it any more."""
        found = (one for key, one in self._projects.items() if (one.name, key[1]) == (name, environment))
        return next(found, None)

    def environment(self, project: AgentProject) -> str:
        """Return the environment in which this very project was opened, or the app that it is a deployment of."""
        # Not by its name, which a project has in all environments, and another project may have as well.
        opened = project.deployment_of or project if isinstance(project, CxProject) else project
        return next((key[1] for key, each in self._projects.items() if each is opened), "sandbox")

    def projects(self) -> Sequence[AgentProject]:
        return list(self._projects.values())


def _key(number: Number) -> tuple[Path, str]:
    return Path(number.project).resolve(), number.environment


# Commands -------------------------------------------------------------------------------------------------------------


def check(path: Path, *, as_json: bool) -> int:
    """Print the findings of a check; return the exit status, 1 if there are errors."""
    kind = _kind_of(path)
    report = kind.check(path)
    # An import runs the project's code, which would fail because of the same errors and explain them worse.
    if not report.errors:
        report = asyncio.run(_with_imports(kind, path, report))
    if as_json:
        print(json.dumps(report.as_json(), ensure_ascii=False, indent=2))  # noqa: T201
    else:
        for name, findings in (("error", report.errors), ("warning", report.warnings)):
            for one in findings:
                rule = f"[{one.rule}] " if one.rule else ""
                print(f"{one.file}:{one.line}: {rule}{name}: {one.message}")  # noqa: T201
        print(f"{len(report.errors)} errors, {len(report.warnings)} warnings")  # noqa: T201
    return 0 if report.ok else 1


async def _with_imports(kind: ProjectKind, path: Path, report: CheckReport) -> CheckReport:
    """Return the report with what an import of the project's Python finds. To be called if its files have no errors."""
    runtime = kind.runtime(path)
    pool = ProcessPool(runtime, worker_settings(Config(), runtime.readable))
    try:
        found = await kind.check_imports(pool)
    except WorkerError as error:
        return replace(report, errors=[Finding(path.name or ".", 1, f"the project cannot be imported: {error}")])
    finally:
        await pool.close()
    return CheckReport(found.errors, [*report.warnings, *found.warnings])


def chat(config: Config, options: argparse.Namespace) -> int:
    """Run `callagent chat`."""
    from callagent.testing import ChatOptions

    if options.model:
        config = override(config, {"model.name": options.model})
    settings = replace(
        flow_settings(config, options.env),
        channel=options.channel,
        variant=options.variant,
        language=options.lang,
        at=parse_instant(options.at),
    )
    chat_options = ChatOptions(
        caller=options.caller,
        callee=options.callee,
        headers=dict(_parse_header(each) for each in options.sip_header),
        environment=options.env,
        as_json=options.json,
    )
    messages = options.message
    if options.input_file:
        messages = _read_lines(options.input_file)
    asyncio.run(_chat(config, options.project, settings, chat_options, messages))
    return 0


async def _chat(
    config: Config, path: Path, settings: FlowSettings, options: ChatOptions, messages: list[str] | None
) -> None:
    from callagent.testing import run_chat

    model = open_language_model(config)
    try:
        project = await open_project(path, model, config, settings)
        try:
            await run_chat(project, messages, options, sys.stdout)
        finally:
            await project.close()
    finally:
        await model.close()


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--input-file {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--input-file {path}: not UTF-8: {error}") from None


def _kind_of(path: Path) -> ProjectKind:
    """Return the format of the project in `path`. Raises `UserError` if there is none."""
    if not path.is_dir() and not is_cx_app(path):
        raise UserError(f"'{path}' is not a folder; give the folder of an agent project, or an exported app's zip")
    for kind in KINDS:
        if kind.recognises(path):
            return kind
    raise UserError(
        f"'{path.resolve()}' holds no agent project: project.yaml, flows/ or agent_settings/ of a flow project, "
        "root_agent.yaml of an agent tree, or app.json (app.yaml) of an exported app is expected there"
    )


def parse_instant(text: str | None) -> datetime | None:
    """Return the time that the option `--at` names. Raises `UserError`."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        raise UserError(f"--at '{text}' is not a time such as 2026-03-02T09:30:00") from None


def _parse_header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UserError(f"--sip-header '{text}' is not NAME=VALUE")
    return name, value
