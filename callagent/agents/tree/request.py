"""One request to the language model, as callbacks see and change it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from callagent.agents.tree.content import Content, as_messages, text_content, texts
from callagent.agents.tree.event import Event
from callagent.agents.tree.history import contents_for, current_contents
from callagent.agents.tree.keepsakes import Adds, Keepsakes
from callagent.agents.tree.node import LlmNode, Node
from callagent.agents.tree.template import fill_in
from callagent.agents.tree.tool import Tool, ToolKind
from callagent.agents.tree.transfer import transfer_instruction, transfer_targets, transfer_tool
from callagent.models.protocol import Message, ModelSettings

_JSON = "The text of your answer is JSON and nothing else."
_NOT_OFFERED = (ToolKind.EXAMPLES, ToolKind.UNSEEN)
_BEGIN, _END = "<<<BEGIN_SYSTEM_INSTRUCTION>>>", "<<<END_SYSTEM_INSTRUCTION>>>"
# The format's own sentences: an instruction that goes with the caller's words must not be taken for them.
_LABEL = (
    f"The text between {_BEGIN} and {_END} below is your own system instruction for this turn and carries the current "
    "session state. It is addressed to you. Nothing between those two markers was said by the user, so do not answer "
    "it or continue it as though it were their turn. Anything the user actually said appears outside the markers, and "
    "a real user turn may follow immediately after the end marker."
)


@dataclass(slots=True)
class ModelRequest:
    system: str
    contents: list[Content]
    tools: Mapping[str, Tool]
    """By name; the order is the model's."""
    model: str = ""
    """The project's name of a model; empty: the configured one."""
    temperature: float | None = None
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    safety: Mapping[str, str] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    json_output: bool = False

    def messages(self) -> list[Message]:
        text = "\n\n".join(each for each in (self.system, self._form()) if each)
        system: list[Message] = [{"role": "system", "content": text}] if text else []
        return [*system, *as_messages(self.contents)]

    def _form(self) -> str:
        """What every provider's model understands; switches for JSON do not say of what form, and not all have them."""
        if self.output_schema is not None:
            return f"{_JSON} It follows this JSON schema:\n{json.dumps(self.output_schema, ensure_ascii=False)}"
        return _JSON if self.json_output else ""

    def settings(self, models: Mapping[str, str]) -> ModelSettings:
        """`models`: the project's names of models -> ours."""
        return ModelSettings(
            models.get(self.model, ""),
            self.temperature,
            self.max_tokens,
            json_output=self.json_output or self.output_schema is not None,
            sampling=self.sampling,
            safety=self.safety,
        )

    def as_plain(self) -> dict[str, Any]:
        """For `before_model` callbacks."""
        return {
            "model": self.model,
            "system_instruction": self.system,
            "contents": [dict(content) for content in self.contents],
            "temperature": self.temperature,
            "max_output_tokens": self.max_tokens,
            "tools": [tool.declaration for tool in self.tools.values()],
        }

    def take(self, changed: Mapping[str, Any]) -> None:
        """What a callback made of it. Tools can be taken away, not added: nobody could carry them out."""
        self.system = str(changed.get("system_instruction") or "")
        self.contents = list(changed.get("contents") or ())
        self.temperature, self.max_tokens = changed.get("temperature"), changed.get("max_output_tokens")
        self.model = str(changed.get("model") or "")
        names = {str(tool.get("name")) for tool in changed.get("tools") or ()}
        self.tools = {name: tool for name, tool in self.tools.items() if name in names}


def build_request(
    node: LlmNode,
    branch: str,
    events: Sequence[Event],
    state: Mapping[str, Any],
    instruction: str | None,
    keepsakes: Keepsakes | None = None,
    said: Content | None = None,
) -> ModelRequest:
    """What the agent would ask now. `instruction`: made by project code, final as it is; None: the agent's own.
    `said`: the caller's words, by which memories are found.

    Raises `RunFailed` when a template names what the state does not have.
    """
    kept = keepsakes or Keepsakes()
    text = fill_in(node.instruction or "", state, node.name, kept.artifacts) if instruction is None else instruction
    targets = transfer_targets(node)
    tools = {tool.name: tool for tool in node.tools if tool.kind not in _NOT_OFFERED}
    if targets:
        # First, and in place of one that the project names itself: only the targets may be chosen.
        transfer = transfer_tool(targets)
        tools = {transfer.name: transfer, **{name: tool for name, tool in tools.items() if name != transfer.name}}
    view = contents_for if node.has_history else current_contents
    contents = view(node.name, branch, events)
    system = [node.static_instruction or text, _identity(node)]
    if node.static_instruction and text:
        contents.insert(_last_words(contents), text_content("user", _labelled(text)))
    if targets:
        system.append(transfer_instruction(node, targets))
    system += [tool.text for tool in node.tools]
    adds = {tool.adds for tool in node.tools}
    if Adds.ARTIFACTS in adds:
        system.append(kept.artifact_instruction())
        contents += kept.loaded(contents)
    if Adds.MEMORIES in adds and (memories := kept.memories(said)) is not None:
        contents.insert(_last_words(contents), memories)
    return ModelRequest(
        system="\n\n".join(each for each in system if each),
        contents=contents,
        tools=tools,
        model=node.model_name,
        temperature=node.temperature,
        max_tokens=node.max_tokens,
        sampling=node.sampling,
        safety=node.safety,
        output_schema=node.output_schema,
        json_output=node.json_output,
    )


def _identity(node: Node) -> str:
    text = f'You are an agent. Your internal name is "{node.name}".'
    return text + (f' The description about you is "{node.description}".' if node.description else "")


def _labelled(instruction: str) -> str:
    inside = instruction.replace(_BEGIN, "<<<ELIDED_MARKER>>>").replace(_END, "<<<ELIDED_MARKER>>>")
    return f"{_LABEL}\n{_BEGIN}\n{inside}\n{_END}"


def _last_words(contents: Sequence[Content]) -> int:
    """Where the caller's last run of words begins."""
    index = len(contents)
    while index and contents[index - 1].get("role") == "user" and texts(contents[index - 1]):
        index -= 1
    return index
