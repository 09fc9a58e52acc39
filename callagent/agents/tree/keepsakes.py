"""What a call keeps beside its history: files, and memories of the caller. Workers ask for it; requests are given it.

A worker asks `{"type": "keepsake", "ask": True, "what", …}`: `save` (`name`, `part`) → version, `load` (`name`,
`version`) → part or None, `names` → names, `remember` → None, `search` (`query`) → entries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any

from callagent.agents.tree.artifacts import Artifacts, readable
from callagent.agents.tree.content import Content, parts, text_content, texts
from callagent.agents.tree.event import Event
from callagent.agents.tree.memory import Memory, entries_of

ASKED = "keepsake"
# The format's own sentences.
_ARTIFACTS = """You have a list of artifacts:
  {names}

  When the user asks questions about any of the artifacts, you should call the
  `load_artifacts` function to load the artifact. Always call load_artifacts
  before answering questions related to the artifacts, regardless of whether the
  artifacts have been loaded before. Do not depend on prior answers about the
  artifacts.
  """
_MEMORIES = """The following content is from your previous conversations with the user.
They may be useful for answering the user's current query.
<PAST_CONVERSATIONS>
{lines}
</PAST_CONVERSATIONS>
"""


class Adds(Enum):
    """What a tool adds to every request of its agent."""

    ARTIFACTS = "artifacts"
    MEMORIES = "memories"


class Keepsakes:
    """Of one call, its agents that are tools included."""

    def __init__(self, artifacts: Artifacts | None = None, memory: Memory | None = None, caller: str = "") -> None:
        """`caller`: whose memories they are; empty: nobody knows, and nothing is remembered beyond the call."""
        self.artifacts = artifacts or Artifacts()
        self._memory = memory or Memory()
        self._call = object()
        self._caller: Hashable = caller or self._call

    def answer(self, message: Mapping[str, Any], events: Sequence[Event], conceal: Callable[[Any], Any]) -> Any:
        """A worker's question, in which `conceal` has put names for secret digits; data of files is its to do here.

        Raises `ArtifactRefused`.
        """
        match message["what"]:
            case "save":
                return self.artifacts.save(str(message["name"]), _concealed(message["part"], conceal))
            case "load":
                return self.artifacts.load(str(message["name"]), message.get("version"))
            case "names":
                return self.artifacts.names()
            case "remember":
                return self.remember(events)
            case "search":
                return self._memory.search(self._caller, str(message["query"]))
            case other:
                raise ValueError(f"unknown question {other!r}")

    def remember(self, events: Sequence[Event]) -> None:
        self._memory.take(self._caller, self._call, entries_of(events, datetime.now().isoformat()))

    def artifact_instruction(self) -> str:
        """Empty: there are none."""
        names = self.artifacts.names()
        return _ARTIFACTS.format(names=json.dumps(names)) if names else ""

    def loaded(self, contents: Sequence[Content]) -> list[Content]:
        """The artifacts that the model has asked for last: for this request only."""
        found: list[Content] = []
        for part in parts(contents[-1]) if contents and self.artifacts.names() else ():
            response = part.get("function_response") or {}
            names = (response.get("response") or {}).get("artifact_names")
            for name in names if response.get("name") == "load_artifacts" and isinstance(names, list) else ():
                artifact = self.artifacts.find(str(name))
                if artifact is not None:
                    shown = [{"text": f"Artifact {name} is:"}, {"text": readable(artifact, str(name))}]
                    found.append({"role": "user", "parts": shown})
        return found

    def memories(self, said: Content | None) -> Content | None:
        """What is remembered that has to do with the caller's words; None: nothing."""
        lines: list[str] = []
        for entry in self._memory.search(self._caller, " ".join(texts(said))):
            lines.append(f"Time: {entry['timestamp']}")
            lines.append(f"{entry['author']}: {' '.join(texts(entry['content']))}")
        return text_content("user", _MEMORIES.format(lines="\n".join(lines))) if lines else None


def _concealed(part: Mapping[str, Any], conceal: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Models read files that are text: digits in their data are found as in any other text."""
    blob = part.get("inline_data")
    if not isinstance(blob, Mapping) or not isinstance(blob.get("data"), bytes):
        return part
    text = str(conceal(blob["data"].decode("latin-1")))
    return {**part, "inline_data": {**blob, "data": text.encode("latin-1")}}
