"""Artifacts of a call and memories of its caller. The core keeps them, so that they survive the worker's replacement.

A worker asks by a `worker_protocol.StorageRequest`, whose `what` is one of: `save` (`name`, `part`) → version number,
`load` (`name`, `version`) → part or None, `names` → names, `remember` → None, `search` (`query`) → memory entries.
"""

from __future__ import annotations

import copy
import json
import re
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime

from callagent.agents.tree.events import Content, Event, Part, PlainObject, parts, text_content, texts
from callagent.errors import CallagentError

STORAGE_REQUEST = "call_storage"
# The two texts below are part of the ADK format, word for word.
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


class CallStorage:
    """The artifacts and memories of one call, shared by its agents that run as tools."""

    def __init__(self, artifacts: Artifacts | None = None, memory: Memory | None = None, caller: str = "") -> None:
        """`caller` is the number by which memories are kept; when it is empty, they end with the call."""
        self.artifacts = artifacts or Artifacts()
        self._memory = memory or Memory()
        self._call = object()
        self._caller: Hashable = caller or self._call

    def answer(self, message: PlainObject, events: Sequence[Event], conceal: Callable[[str], str]) -> object:
        """Answer a worker's question. Raises `ArtifactRefused`.

        `conceal` has replaced secure digits in the question already, but not in the bytes of an artifact.
        """
        match message["what"]:
            case "save":
                return self.artifacts.save(str(message["name"]), _concealed(message["part"], conceal))
            case "load":
                return self.artifacts.load(str(message["name"]), message.get("version"))
            case "names":
                return self.artifacts.names()
            case "remember":
                self.remember(events)
                return None
            case "search":
                return self._memory.search(self._caller, str(message["query"]))
            case other:
                raise ValueError(f"unknown storage request {other!r}")

    def remember(self, events: Sequence[Event]) -> None:
        """Add this call's words to the caller's memories, replacing those of this call that are there already."""
        # A tool may ask for it in the middle of the call, and it is done once more at the end of the call.
        self._memory.keep_call(self._caller, self._call, entries_of(events, datetime.now().isoformat()))

    def artifact_instruction(self) -> str:
        """Return the instruction that lists the artifacts; empty when there are none."""
        names = self.artifacts.names()
        return _ARTIFACTS.format(names=json.dumps(names)) if names else ""

    def requested_artifacts(self, contents: Sequence[Content]) -> list[Content]:
        """Return the artifacts that the newest content asked for by `load_artifacts`; they go into one request only."""
        found: list[Content] = []
        # Only in the newest content: a model that needs an artifact again has to ask again, as the tool's status says.
        for part in parts(contents[-1]) if contents and self.artifacts.names() else ():
            response = part.get("function_response") or {}
            names = (response.get("response") or {}).get("artifact_names")
            for name in names if response.get("name") == "load_artifacts" and isinstance(names, list) else ():
                artifact = self.artifacts.find(str(name))
                if artifact is not None:
                    shown = [{"text": f"Artifact {name} is:"}, {"text": artifact_text(artifact, str(name))}]
                    found.append({"role": "user", "parts": shown})
        return found

    def matching_memories(self, utterance: Content | None) -> Content | None:
        """Return the memories that share words with the caller's utterance, or None when there are none."""
        lines: list[str] = []
        for entry in self._memory.search(self._caller, " ".join(texts(utterance))):
            lines.append(f"Time: {entry['timestamp']}")
            lines.append(f"{entry['author']}: {' '.join(texts(entry['content']))}")
        return text_content("user", _MEMORIES.format(lines="\n".join(lines))) if lines else None


def _concealed(part: PlainObject, conceal: Callable[[str], str]) -> PlainObject:
    """Replace secure digits in an artifact's bytes, because a model may read them as text."""
    blob = part.get("inline_data")
    if not isinstance(blob, Mapping) or not isinstance(blob.get("data"), bytes):
        return part
    # Latin-1 maps every byte to a character and back, so that binary data stays unchanged.
    text = conceal(blob["data"].decode("latin-1"))
    return {**part, "inline_data": {**blob, "data": text.encode("latin-1")}}


Files = dict[str, list[Part]]
"""Artifacts: the versions under each name, each `{"text"}` or `{"inline_data": {"mime_type", "data"}}`."""
CALLER_PREFIX = "user:"
"""Prefix of the names of a caller's own artifacts, which the caller's next call has too."""
MAX_BYTES = 8 * 1024 * 1024
"""Bytes of all versions of a call's artifacts."""
MAX_CALLER_BYTES = 1024 * 1024
"""Bytes of all versions of a caller's own artifacts."""
MAX_VERSIONS = 200
"""Versions of a call's artifacts, and again as many of a caller's own."""
_TEXT_TYPES = ("application/csv", "application/json", "application/svg+xml", "application/xml")
_TEXT_SUFFIXES = (".csv", ".txt", ".json", ".xml")


class ArtifactRefused(CallagentError):
    """The refusal of an artifact that is neither text nor data, or that exceeds a limit."""


class Artifacts:
    """The named, versioned files that a call's code and agents keep. Nothing of them is written to disk."""

    def __init__(
        self, caller_files: Files | None = None, on_change: Callable[[Files], None] = lambda files: None
    ) -> None:
        """`caller_files` are the caller's own artifacts, which outlive the call; `on_change` is called with them."""
        self._call_files: Files = {}
        self._caller_files: Files = {} if caller_files is None else caller_files
        self._on_change = on_change

    def save(self, name: str, part: Part) -> int:
        """Add a version and return its number, from 0. Raises `ArtifactRefused`."""
        files, limit = self._files(name), MAX_CALLER_BYTES if name.startswith(CALLER_PREFIX) else MAX_BYTES
        # All versions count: project code may save the same name again and again.
        versions = [each for row in files.values() for each in row]
        size = _size(part)
        if size is None:
            raise ArtifactRefused(f"artifact '{name}' is neither a text nor inline data")
        if len(versions) >= MAX_VERSIONS or size + sum(_size(each) or 0 for each in versions) > limit:
            limits = f"at most {MAX_VERSIONS} versions and {limit >> 20} MiB of artifacts are kept"
            raise ArtifactRefused(f"artifact '{name}' is refused: {limits}")
        # A copy, because project code may go on changing the part that it saved.
        files.setdefault(name, []).append(copy.deepcopy(part))
        if files is self._caller_files:
            self._on_change(files)
        return len(files[name]) - 1

    def load(self, name: str, version: int | None = None) -> Part | None:
        """Return a version, or the newest one; None when there is no such artifact."""
        versions = self._files(name).get(name) or []
        if version is None:
            return versions[-1] if versions else None
        return versions[version] if 0 <= version < len(versions) else None

    def names(self) -> list[str]:
        return sorted([*self._call_files, *self._caller_files])

    def find(self, name: str) -> Part | None:
        """Return the newest version of an artifact; models may leave the prefix `user:` out of its name."""
        found = self.load(name)
        return found if found is not None else self.load(f"{CALLER_PREFIX}{name}")

    def _files(self, name: str) -> Files:
        return self._caller_files if name.startswith(CALLER_PREFIX) else self._call_files


def artifact_text(part: Part, name: str) -> str:
    """Return an artifact as a text for a model; of binary data only name, type and size."""
    blob = part.get("inline_data")
    if not isinstance(blob, Mapping):
        return str(part.get("text") or "")
    kind = str(blob.get("mime_type") or "application/octet-stream").partition(";")[0].strip().lower()
    data = blob.get("data") or b""
    raw = data if isinstance(data, bytes) else str(data).encode()
    if kind.startswith("text/") or kind in _TEXT_TYPES or name.lower().endswith(_TEXT_SUFFIXES):
        return raw.decode("utf-8", "replace")
    size = len(raw) / 1024
    return f"[Binary artifact: {name}, type: {kind}, size: {size:.1f} KB. Content cannot be displayed inline.]"


def _size(part: Part) -> int | None:
    """Return the size in bytes, or None when the part is neither text nor data."""
    if isinstance(part.get("text"), str):
        return len(part["text"].encode())
    blob = part.get("inline_data")
    data = blob.get("data") if isinstance(blob, Mapping) else None
    return len(data) if isinstance(data, (bytes, str)) else None


Entry = PlainObject
"""`{"id", "author", "timestamp", "content", "custom_metadata"}`."""
MAX_CALLERS = 500
"""Callers with memories; the one whose last call is the oldest is dropped first."""
MAX_CALLS = 10
"""Calls remembered of one caller."""
MAX_ENTRIES = 200
"""Entries remembered of one call: its last ones."""
MAX_FOUND = 10
"""Entries that a search returns."""


class Memory:
    """The words of earlier calls, by caller. They are searched by words, and lost when the server ends."""

    def __init__(self) -> None:
        self._callers: OrderedDict[Hashable, OrderedDict[Hashable, list[Entry]]] = OrderedDict()

    def keep_call(self, caller: Hashable, call: Hashable, entries: Iterable[Entry]) -> None:
        """Store the entries of a call, replacing earlier ones of the same call."""
        # Both dicts are in the order of their last change, so the first entry is the one to drop.
        calls = self._callers.setdefault(caller, OrderedDict())
        calls[call] = list(entries)[-MAX_ENTRIES:]
        calls.move_to_end(call)
        if len(calls) > MAX_CALLS:
            calls.popitem(last=False)
        self._callers.move_to_end(caller)
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)

    def search(self, caller: Hashable, query: str) -> list[Entry]:
        """Return the entries that share the most words with the query; among equals, the oldest first."""
        query_words = _words(query)
        found = []
        for entry in (each for call in self._callers.get(caller, {}).values() for each in call):
            text = " ".join(texts(entry["content"]))
            words, folded = _words(text), unicodedata.normalize("NFC", text).lower()
            # Japanese and Chinese have no spaces between words, so a word of the query may be any part of the text.
            shared = sum(word in words or (not word.isascii() and word in folded) for word in query_words)
            if shared:
                found.append((shared, entry))
        # Python's sort is stable, so entries with equally many shared words stay in the order in which they were said.
        found.sort(key=lambda each: -each[0])
        return [entry for _, entry in found[:MAX_FOUND]]


def entries_of(events: Sequence[Event], timestamp: str) -> list[Entry]:
    """Return the spoken texts of a call as memory entries."""
    return [
        {
            "content": {
                "parts": [{"text": text} for text in texts(event.content)],
                "role": (event.content or {})["role"],
            },
            "custom_metadata": {},
            "id": event.id,
            "author": event.author,
            "timestamp": timestamp,
        }
        for event in events
        if texts(event.content)
    ]


def _words(text: str) -> set[str]:
    """Return the words of a text, lowercased, and the Latin words inside words of other scripts."""
    # In normalisation form NFC, because recognisers and models write "é" as one character or as two.
    found = {word.lower() for word in re.findall(r"\w+", unicodedata.normalize("NFC", text))}
    foreign = [word for word in found if not word.isascii()]
    return found | {part for word in foreign for part in re.findall(r"[a-z0-9_]+|[^a-z0-9_]+", word)}
