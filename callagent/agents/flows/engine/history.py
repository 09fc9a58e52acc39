"""The words and tool calls of one call: for the model, for `conv.history` and for the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from callagent.models import Message, ToolCall

NOT_EXECUTED = "Not executed."
CUT_MARK = "…"


@dataclass(frozen=True, slots=True)
class UserSaid:
    text: str
    """Empty: a silent turn."""


@dataclass(frozen=True, slots=True)
class AgentSaid:
    text: str
    utterance: int
    """Sentences of one streamed answer share it."""


@dataclass(frozen=True, slots=True)
class ToolsCalled:
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class ToolAnswered:
    call_id: str
    content: str
    """The function's result, unresolved: references in it are resolved with each request."""


@dataclass(frozen=True, slots=True)
class Note:
    """A system message at its place in the conversation."""

    text: str


Entry = UserSaid | AgentSaid | ToolsCalled | ToolAnswered | Note


@dataclass(slots=True)
class History:
    """The entries of one call in order. What an interruption cut off is taken out again."""

    entries: list[Entry] = field(default_factory=list)
    _utterances: int = 0

    def user(self, text: str) -> None:
        self.entries.append(UserSaid(text))

    def new_utterance(self) -> int:
        """Return the number that the sentences of one utterance share."""
        self._utterances += 1
        return self._utterances

    def agent(self, text: str, utterance: int | None = None) -> None:
        self.entries.append(AgentSaid(text, self.new_utterance() if utterance is None else utterance))

    def called(self, calls: tuple[ToolCall, ...]) -> None:
        self.entries.append(ToolsCalled(calls))

    def answered(self, call_id: str, content: str) -> None:
        """Add the answer to a tool call; one whose call a reopened turn has removed is dropped."""
        if any(call.id == call_id for each in self.entries if isinstance(each, ToolsCalled) for call in each.calls):
            self.entries.append(ToolAnswered(call_id, content))

    def note(self, text: str) -> None:
        self.entries.append(Note(text))

    def correct(self, heard: str) -> None:
        """Shorten the agent's last words to the heard text, after an interruption."""
        # Compared by the number of words, because the heard text may have other spaces.
        start = self._last_turn()
        left = len(heard.split())
        kept: list[Entry] = []
        for entry in self.entries[start:]:
            if not isinstance(entry, AgentSaid):
                kept.append(entry)
                continue
            spoken = entry.text.split()
            if left >= len(spoken):
                kept.append(entry)
            elif left > 0:
                kept.append(AgentSaid(" ".join(spoken[:left]) + CUT_MARK, entry.utterance))
            left -= min(left, len(spoken))
        self.entries[start:] = kept

    def reopen(self, is_hidden: Callable[[str], bool] = lambda function: False) -> None:
        """Remove the last turn: the caller goes on with it, and its words come again as a whole.

        A turn that called functions stays, unless `is_hidden` says of each that the model is to know nothing of it.
        """
        start = max((at for at, entry in enumerate(self.entries) if isinstance(entry, UserSaid)), default=None)
        if start is None:
            return
        called = [call.name for each in self.entries[start:] if isinstance(each, ToolsCalled) for call in each.calls]
        if all(is_hidden(name) for name in called):
            del self.entries[start:]

    def plain(self) -> list[dict[str, str]]:
        """Return `[{"role": "user"|"agent", "text"}]`, one agent entry for each utterance."""
        found: list[dict[str, str]] = []
        utterance: int | None = None
        for entry in self.entries:
            if isinstance(entry, UserSaid):
                found.append({"role": "user", "text": entry.text})
                utterance = None
            elif isinstance(entry, AgentSaid) and entry.utterance == utterance:
                found[-1]["text"] += f" {entry.text}"
            elif isinstance(entry, AgentSaid):
                found.append({"role": "agent", "text": entry.text})
                utterance = entry.utterance
        return found

    def recent_contents(self, turns: int) -> Iterator[str]:
        """Yield the function results and notes of the last turns, newest first; the present turn counts as one."""
        seen = 0
        for entry in reversed(self.entries):
            seen += isinstance(entry, UserSaid)
            if seen >= turns:
                return
            if isinstance(entry, ToolAnswered | Note):
                yield entry.content if isinstance(entry, ToolAnswered) else entry.text

    def messages(self, resolve: Callable[[str], str], silence: str) -> list[Message]:
        """Return the conversation as a model reads it: every tool call is followed by exactly one answer."""
        # Providers refuse a request with an unanswered tool call: those not executed are answered as such.
        answers = {e.call_id: e.content for e in self.entries if isinstance(e, ToolAnswered)}
        messages: list[dict[str, Any]] = []
        for entry in self.entries:
            match entry:
                case UserSaid(text):
                    messages.append({"role": "user", "content": text or silence})
                case AgentSaid(text):
                    _add_words(messages, text)
                case Note(text):
                    messages.append({"role": "system", "content": resolve(text)})
                case ToolsCalled(calls):
                    _add_calls(messages, calls)
                    for call in calls:
                        content = resolve(answers.get(call.id, NOT_EXECUTED))
                        messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
                case ToolAnswered():
                    pass
        return list(messages)

    def _last_turn(self) -> int:
        """Return the index behind the caller's last words."""
        for index in range(len(self.entries) - 1, -1, -1):
            if isinstance(self.entries[index], UserSaid):
                return index + 1
        return 0


def _add_words(messages: list[dict[str, Any]], text: str) -> None:
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and "tool_calls" not in last:
        last["content"] = f"{last['content']} {text}"
    else:
        messages.append({"role": "assistant", "content": text})


def _add_calls(messages: list[dict[str, Any]], calls: tuple[ToolCall, ...]) -> None:
    tool_calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
    ]
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and "tool_calls" not in last:
        last["tool_calls"] = tool_calls
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": tool_calls})
