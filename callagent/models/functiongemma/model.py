"""FunctionGemma as a language model: one utterance, few functions, and calls that are checked before they are sent.

The model was trained to call functions on a single utterance, not to lead a conversation. It therefore sees only
the last instructions, the caller's last utterance and the calls made since. After an invalid call the model is asked
once more and told the mistake. If there is no answer then, the fallback model answers, or `ProviderError` is raised.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from callagent.errors import ProviderError, UserError
from callagent.log import get_logger
from callagent.models.functiongemma.engines import WIRES, CompletionEngine, CompletionRequest
from callagent.models.functiongemma.format import FUNCTIONGEMMA, TokenSet, function_of, grammar
from callagent.models.functiongemma.parsing import Delta as ParsedDelta
from callagent.models.functiongemma.parsing import FunctionCall, Problem, StreamParser
from callagent.models.functiongemma.prompt import one_utterance, render_prompt
from callagent.models.protocol import (
    Delta,
    LanguageModel,
    Message,
    ModelSettings,
    Tool,
    ToolCall,
    Usage,
    for_call,
)

log = get_logger(__name__)

_MAX_TOKENS = 128
"""Tokens of an answer, unless the request sets a limit."""
_MAX_CALLS = 16
"""Calls of one answer; further ones are dropped."""


@dataclass(slots=True)
class _Answer:
    """The calls, problems and token counts of one or two completions."""

    calls: list[FunctionCall] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    has_words: bool = False
    """Whether words were passed on."""
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def first_loss(self) -> Problem | None:
        """The first problem by which a call was lost; None: no call was lost."""
        return next((problem for problem in self.problems if problem.is_loss), None)

    def count(self, usage: Usage) -> None:
        """Add the tokens of a completion."""
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens

    def add_deltas(self, deltas: Sequence[ParsedDelta]) -> str:
        """Store the calls and problems, and return the words."""
        for delta in deltas:
            if delta.tool_call:
                self.add_call(delta.tool_call)
            if delta.problem:
                self.problems.append(delta.problem)
        return "".join(delta.text for delta in deltas)

    def add_call(self, call: FunctionCall) -> None:
        """Store a call unless it is a repetition."""
        # Small models repeat themselves: the same call twice in one answer is meant once.
        if call not in self.calls and len(self.calls) < _MAX_CALLS:
            self.calls.append(call)


class FunctionGemmaModel:
    """The language model: it renders prompts and checks answers. `close()` closes engine and fallback."""

    def __init__(
        self,
        engine: CompletionEngine,
        *,
        tokens: TokenSet = FUNCTIONGEMMA,
        fallback: LanguageModel | None = None,
        temperature: float = 0.0,
    ) -> None:
        """`fallback`, such as a larger model or rules, answers where this model calls no function."""
        self._engine = engine
        self._tokens = tokens
        self._fallback = fallback
        self._temperature = temperature

    def for_call(self) -> LanguageModel:
        if self._fallback is None:
            return self
        return FunctionGemmaModel(
            self._engine, tokens=self._tokens, fallback=for_call(self._fallback), temperature=self._temperature
        )

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        answer = _Answer()
        if tools or self._fallback is None:
            # Words are passed on as they come, calls only at the end, because a lost one is asked for again.
            async with aclosing(self._words(answer, one_utterance(messages), tools, settings)) as words:
                async for text in words:
                    yield Delta(text=text)
        for number, call in enumerate(answer.calls, 1):
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            yield Delta(tool_call=ToolCall(f"call_{number}", call.name, arguments))
        if not answer.calls and not answer.has_words:
            # `settings.model` names one of this engine's models; the fallback has its own.
            others = self._fallback_answer(answer, messages, tools, replace(settings, model=""))
            async with aclosing(others) as deltas:
                async for delta in deltas:
                    yield delta
        if answer.input_tokens or answer.output_tokens:
            yield Delta(usage=Usage(answer.input_tokens, answer.output_tokens))

    async def close(self) -> None:
        await self._engine.close()
        if self._fallback is not None:
            await self._fallback.close()

    async def _fallback_answer(
        self, answer: _Answer, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        """Yield the fallback's answer, and add its tokens to those of `answer`. Raises `ProviderError`."""
        if self._fallback is None:
            reason = answer.first_loss.reason if answer.first_loss else "it neither spoke nor called a function"
            raise ProviderError(f"the model's answer cannot be used: {reason}")
        async with aclosing(self._fallback.stream(messages, tools, settings)) as deltas:
            async for delta in deltas:
                if delta.usage:
                    answer.count(delta.usage)
                if delta.text or delta.tool_call:
                    yield replace(delta, usage=None)

    async def _words(
        self, answer: _Answer, messages: list[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[str, None]:
        """Yield the words as they come, and collect the calls in `answer`; ask a second time if a call was lost."""
        speaks = self._fallback is None
        async with aclosing(self._complete(answer, self._request(messages, tools, settings), tools)) as words:
            async for text in words:
                # The model's own words are mostly excuses; with a fallback they are dropped.
                if speaks:
                    answer.has_words = answer.has_words or not text.isspace()
                    yield text
        if (lost := answer.first_loss) is None:
            return
        # A call is lost if it cannot be read or the tools do not allow it.
        if answer.calls and lost.call and not _named(tools, lost.name):
            # The calls before it may lead to a step that offers the function, so the agent, which runs them, decides.
            answer.add_call(lost.call)
            return
        log.warning("model_call_refused", function=lost.name, reason=lost.reason)
        # Problems of the first answer do not count for the second.
        answer.problems.clear()
        speaks = speaks and not answer.has_words
        async with aclosing(self._complete(answer, self._correction(messages, tools, settings, lost), tools)) as words:
            async for text in words:
                if speaks:
                    answer.has_words = answer.has_words or not text.isspace()
                    yield text
        if (lost := answer.first_loss) is not None:
            log.warning("model_call_lost", function=lost.name, reason=lost.reason)

    async def _complete(
        self, answer: _Answer, request: CompletionRequest, tools: Sequence[Tool]
    ) -> AsyncGenerator[str, None]:
        parser = StreamParser(tools, tokens=self._tokens)
        async with aclosing(self._engine.complete(request)) as pieces:
            async for piece in pieces:
                deltas = parser.feed(piece.text)
                if piece.finished:
                    deltas += parser.finish()
                if piece.usage:
                    answer.count(piece.usage)
                if text := answer.add_deltas(deltas):
                    yield text

    def _request(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings, gbnf: str = ""
    ) -> CompletionRequest:
        tokens = self._tokens
        try:
            prompt = render_prompt(messages, tools, tokens=tokens)
        except ValueError as error:
            raise ProviderError(f"the conversation cannot be written for the model: {error}") from error
        return CompletionRequest(
            prompt=prompt,
            bos=tokens.bos,
            stops=tokens.stops,
            special=tokens.control,
            max_tokens=settings.max_tokens or _MAX_TOKENS,
            # A project's temperature is for models that talk; calls of functions need the likeliest token.
            temperature=self._temperature,
            model=settings.model,
            grammar=gbnf,
        )

    def _correction(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings, lost: Problem
    ) -> CompletionRequest:
        """Return the request again, with the lost call and its mistake after the conversation.

        If the function exists, it is offered alone, and with its grammar if the engine supports one. For a function
        that does not exist no grammar is used, because the model itself has to choose another.
        """
        # A single function makes a short prompt and cannot be confused with another.
        known = _named(tools, lost.name)
        # The first answer may have ended at the limit, in the middle of a call.
        settings = replace(settings, max_tokens=2 * (settings.max_tokens or _MAX_TOKENS))
        if known and self._engine.constrains:
            return self._request(messages, known, settings, grammar(known, tokens=self._tokens))
        if lost.call is None:
            return self._request(messages, known or tools, settings)
        mistake: list[Message] = [
            {"role": "assistant", "tool_calls": [{"function": {"name": lost.name, "arguments": lost.call.arguments}}]},
            {"role": "tool", "content": {"name": lost.name, "response": {"error": lost.reason}}},
        ]
        return self._request([*messages, *mistake], known or tools, settings)


def _named(tools: Sequence[Tool], name: str) -> list[Tool]:
    return [tool for tool in tools if function_of(tool)["name"] == name]


LOCAL = ("gguf", "transformers")
"""Engines that run in a process of our own."""
ENGINES = (*sorted(WIRES), *LOCAL)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine is reached, and its time limits in seconds."""

    base_url: str = ""
    """The server's address; empty: its default one on this machine."""
    api_key: str = ""
    temperature: float | None = None
    """None: the likeliest token is always taken."""
    first_token_timeout: float = 6.0
    next_token_timeout: float = 2.0
    total_timeout: float = 30.0


def open_functiongemma(
    name: str, settings: EngineSettings, fallback: LanguageModel | None = None
) -> FunctionGemmaModel:
    """Open the model with the engine `name`.

    Names are `llamacpp`, `ollama[:MODEL]`, `vllm[:MODEL]`, `gguf:FILE` and `transformers:DIRECTORY`.

    Raises `UserError` for other names and for missing weights or packages.
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
    from callagent.models.functiongemma.engines import HttpEngine, ServerSettings

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
    from callagent.models.functiongemma.engines import LocalEngine

    return LocalEngine.open(kind, path, settings.first_token_timeout, settings.total_timeout)
