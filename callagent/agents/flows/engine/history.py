"""What was said and called in one call: for the model, for `conv.history` and for the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from callagent.models.protocol import Message, ToolCall

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
    """As the function gave it: references are resolved with each request."""


@dataclass(frozen=True, slots=True)
class Note:
    """A system message at its place in the conversation."""

    text: str


Entry = UserSaid | AgentSaid | ToolsCalled | ToolAnswered | Note


@dataclass(slots=True)
class History:
    entries: list[Entry] = field(default_factory=list)
    _utterances: int = 0

    def user(self, text: str) -> None:
        self.entries.append(UserSaid(text))

    def new_utterance(self) -> int:
        self._utterances += 1
        return self._utterances

    def agent(self, text: str, utterance: int | None = None) -> None:
        self.entries.append(AgentSaid(text, self.new_utterance() if utterance is None else utterance))

    def called(self, calls: tuple[ToolCall, ...]) -> None:
        self.entries.append(ToolsCalled(calls))

    def answered(self, call_id: str, content: str) -> None:
        """The answer to a call that a reopened turn took away is nobody's."""
        if any(call.id == call_id for each in self.entries if isinstance(each, ToolsCalled) for call in each.calls):
            self.entries.append(ToolAnswered(call_id, content))

    def note(self, text: str) -> None:
        self.entries.append(Note(text))

    def correct(self, heard: str) -> None:
        """The caller interrupted: of the agent's last words only `heard` stays."""
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

    def reopen(self, is_hidden_when_reopened: Callable[[str], bool] = lambda function: False) -> None:
        """The caller goes on with the last turn, and its words come again, whole.

        One with functions stays, unless all of them are to leave no trace.
        """
        start = max((at for at, entry in enumerate(self.entries) if isinstance(entry, UserSaid)), default=None)
        if start is None:
            return
        called = [call.name for each in self.entries[start:] if isinstance(each, ToolsCalled) for call in each.calls]
        if all(is_hidden_when_reopened(name) for name in called):
            del self.entries[start:]

    def plain(self) -> list[dict[str, str]]:
        """`[{"role": "user"|"agent", "text"}]`, one agent entry for each utterance."""
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
        """Function results of the last turns, as given; the turn that is being spoken is the first."""
        seen = 0
        for entry in reversed(self.entries):
            seen += isinstance(entry, UserSaid)
            if seen >= turns:
                return
            if isinstance(entry, ToolAnswered | Note):
                yield entry.content if isinstance(entry, ToolAnswered) else entry.text

    def messages(self, resolve: Callable[[str], str], silence: str) -> list[Message]:
        """The conversation as a model reads it; every tool call has exactly one answer, right behind it."""
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
        """Index behind the caller's last words."""
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
