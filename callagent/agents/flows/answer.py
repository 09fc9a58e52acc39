"""One streamed answer of the model: sentences for the caller, tool calls, times."""

from __future__ import annotations

from dataclasses import dataclass, field

from callagent.agents.actions import ModelAnswered
from callagent.agents.flows.filters import FilterHit, StreamFilter
from callagent.agents.flows.output_checks import Finding, OutputChecks
from callagent.agents.kernel import SentenceSplitter
from callagent.models.protocol import Delta, ToolCall, Usage


@dataclass(slots=True)
class Answer:
    requested: float
    """The loop's monotonic seconds."""
    filter: StreamFilter
    utterance: int
    """Its number in the history."""
    checks: OutputChecks
    refused: list[Finding] = field(default_factory=list)
    """Sentences that were not said as the model wrote them."""
    calls: list[ToolCall] = field(default_factory=list)
    hit: FilterHit | None = None
    spoke: bool = False
    error: str | None = None
    _first_token: float | None = None
    _usage: Usage | None = None
    _splitter: SentenceSplitter = field(default_factory=SentenceSplitter)

    def feed(self, delta: Delta, now: float) -> list[str]:
        """The sentences that may be spoken now."""
        if self._first_token is None and (delta.text or delta.tool_call):
            self._first_token = now
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.tool_call is not None:
            self.calls.append(delta.tool_call)
        return self._filtered(self._splitter.feed(delta.text)) if delta.text else []

    def finish(self) -> list[str]:
        """The last sentence; nothing when a filter has cut the answer."""
        return [] if self.hit else self._filtered(self._splitter.finish())

    def answered(self, now: float) -> ModelAnswered:
        usage = self._usage or Usage(0, 0)
        return ModelAnswered(
            self.requested,
            self._first_token,
            now,
            usage.input_tokens,
            usage.output_tokens,
            self.error,
            [call.as_plain() for call in self.calls],
        )

    def _checked(self, sentence: str) -> str:
        finding = self.checks.look(sentence) if sentence else None
        if finding is None:
            return sentence
        # What replaces a sentence is said once, however long the model goes on in that way.
        again = any(finding.instead == each.instead for each in self.refused)
        self.refused.append(finding)
        return "" if again else finding.instead

    def _filtered(self, sentences: list[str]) -> list[str]:
        spoken = []
        for sentence in sentences:
            self.hit = self.filter.check(sentence)
            text = self._checked(self.hit.spoken if self.hit else sentence)
            if text:
                spoken.append(text)
            if self.hit:
                break
        return spoken
