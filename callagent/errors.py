"""The errors callagent raises, in one tree.

CallagentError
    UserError            somebody has to change a file, a setting or a command; printed without traceback
        ConfigError      callagent.toml or an environment variable
        ProjectError     the agent project
        MissingExtra     an optional package is not installed
    ProviderError        a speech or language server did not do its part
        ProviderTimeout  it did not answer in time
        ProviderRefused  it answered no: bad key, bad request, over quota
        AnswerWithheld   it withheld the model's answer, or refused the question, as unsafe
    WorkerError          the process of project code failed
        FunctionTimeout  a function ran past its deadline, and the process was killed
        WorkerDied       the process ended while a function ran
"""

from __future__ import annotations

from callagent.log import scrub


class CallagentError(Exception):
    """The base of all errors that callagent raises."""


class UserError(CallagentError):
    """Somebody has to change a file, a setting or a command. The text says where and what to do."""


class ConfigError(UserError):
    """A setting in callagent.toml or the environment is not valid."""


class ProjectError(UserError):
    """The agent project cannot be loaded."""


class MissingExtra(UserError):
    """An optional package is needed and not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': pip install 'callagent[{extra}]'")


class ProviderError(CallagentError):
    """A speech or language provider failed. API keys, which it may have repeated, are removed from the text."""

    def __init__(self, message: str = "") -> None:
        super().__init__(scrub(message))


class ProviderTimeout(ProviderError):
    """The provider did not answer in time."""


class ProviderRefused(ProviderError):
    """The provider answered with a refusal; `status` is the HTTP status where there is one."""

    def __init__(self, message: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """Seconds that the provider asks to be left alone (RFC 9110 §10.2.3); None: it does not say."""


class AnswerWithheld(ProviderError):
    """The provider found the conversation or the answer unsafe; the provider itself works."""


class WorkerError(CallagentError):
    """Project code failed as a process, not as Python."""


class FunctionTimeout(WorkerError):
    """The function ran past its deadline; its process was killed and replaced."""


class WorkerDied(WorkerError):
    """The worker process ended while the function ran."""
