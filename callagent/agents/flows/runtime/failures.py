"""The exceptions that project code may catch, under the names it knows them by."""

from __future__ import annotations


class NotAvailable(NotImplementedError):
    """A part of the project API that this server does not offer; the text names it."""


class MissingHandoff(Exception):
    """`call_handoff` names a destination that the project does not have."""


class MissingTemplate(Exception):
    """`send_sms_template` names a template that the project does not have."""


class SMSIntegrationNotFound(Exception):
    """No SMS sender is configured."""


class SMSMissingAssistantAccess(Exception):
    """The SMS sender is not for this project."""


class ChatCompletionError(Exception):
    """`prompt_llm` got no usable answer."""


class PromptLLMCallLimitError(Exception):
    """One function run asked the model too often."""


class SecretNotFound(Exception):
    """No secret of that name is declared."""


class MissingAccess(Exception):
    """The secret is not for this project."""


class InvalidInput(Exception):
    """The secret's name is not valid."""


class ExtractionError(Exception):
    """The value was not found in what the caller said."""


class CxOneError(Exception):
    """Base of the CXone errors."""


class CxOneMissingContactId(CxOneError): ...


class CxOneSecretError(CxOneError): ...


class CxOneTokenError(CxOneError): ...


class CxOneSignalError(CxOneError): ...


class Unavailable:
    """Stands for an object of the API that is not offered: every use raises `NotAvailable`."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        raise NotAvailable(f"{self.__dict__['_name']}.{attribute} is not available on this server")

    def __getitem__(self, key: object) -> object:
        raise NotAvailable(f"{self.__dict__['_name']}[{key!r}] is not available on this server")
