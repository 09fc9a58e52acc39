"""From the name of an engine, as settings give it, to the model that runs on it."""

from __future__ import annotations

from dataclasses import dataclass

from callagent.errors import UserError
from callagent.models.functiongemma.engine import CompletionEngine
from callagent.models.functiongemma.model import FunctionGemmaModel
from callagent.models.functiongemma.wires import WIRES
from callagent.models.protocol import LanguageModel

LOCAL = ("gguf", "transformers")
ENGINES = (*sorted(WIRES), *LOCAL)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    base_url: str = ""
    """Of the server; empty: where it listens by default on this machine."""
    api_key: str = ""
    temperature: float | None = None
    """None: the likeliest token always."""
    first_token_timeout: float = 6.0
    next_token_timeout: float = 2.0
    total_timeout: float = 30.0


def open_functiongemma(
    name: str, settings: EngineSettings, fallback: LanguageModel | None = None
) -> FunctionGemmaModel:
    """`llamacpp`, `ollama:MODEL`, `vllm:MODEL`, `gguf:FILE` or `transformers:DIRECTORY`; a server's model is optional.

    Raises `UserError` for other names and for weights that are not there.
    """
    kind, _, rest = name.partition(":")
    if kind in WIRES:
        engine = _open_server(kind, rest, settings)
    elif kind in LOCAL and rest:
        engine = _open_local(kind, rest, settings)
    else:
        raise UserError(
            f"unknown engine 'functiongemma/{name}'; known: llamacpp, ollama[:MODEL], vllm[:MODEL], gguf:FILE, "
            "transformers:DIRECTORY"
        )
    return FunctionGemmaModel(engine, fallback=fallback, temperature=settings.temperature or 0.0)


def _open_server(kind: str, model: str, settings: EngineSettings) -> CompletionEngine:
    from callagent.models.functiongemma.http_engine import HttpEngine, ServerSettings

    wire = WIRES[kind]
    server = ServerSettings(
        settings.base_url or wire.default_url,
        model or wire.default_model,
        settings.api_key,
        settings.first_token_timeout,
        settings.next_token_timeout,
        settings.total_timeout,
    )
    return HttpEngine(wire, server)


def _open_local(kind: str, path: str, settings: EngineSettings) -> CompletionEngine:
    from callagent.models.functiongemma.local_engine import LocalEngine

    return LocalEngine.open(kind, path, settings.first_token_timeout, settings.total_timeout)
