"""Artifacts of a call and memories of its caller. The core keeps them, so that a replaced worker has lost nothing.

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
        """`caller` is the number whose memories they are; when it is empty, memories end with the call."""
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
                raise ValueError(f"unknown question {other!r}")

    def remember(self, events: Sequence[Event]) -> None:
        """Keep what was said in this call among the caller's memories, in place of what was kept of it before."""
        # A tool may ask for it in the middle of the call, and the end of the call does it once more.
        self._memory.keep_call(self._caller, self._call, entries_of(events, datetime.now().isoformat()))

    def artifact_instruction(self) -> str:
        """Return the instruction that lists the artifacts; empty when there are none."""
        names = self.artifacts.names()
        return _ARTIFACTS.format(names=json.dumps(names)) if names else ""

    def loaded(self, contents: Sequence[Content]) -> list[Content]:
        """Return the artifacts that the newest content asked for by `load_artifacts`; they go into one request only."""
        found: list[Content] = []
        # Only in the newest content: a model that needs an artifact again has to ask again, as the tool's status says.
        for part in parts(contents[-1]) if contents and self.artifacts.names() else ():
            response = part.get("function_response") or {}
            names = (response.get("response") or {}).get("artifact_names")
            for name in names if response.get("name") == "load_artifacts" and isinstance(names, list) else ():
                artifact = self.artifacts.find(str(name))
                if artifact is not None:
                    shown = [{"text": f"Artifact {name} is:"}, {"text": readable(artifact, str(name))}]
                    found.append({"role": "user", "parts": shown})
        return found

    def memories(self, utterance: Content | None) -> Content | None:
        """Return the memories that share words with what the caller said, or None when there are none."""
        lines: list[str] = []
        for entry in self._memory.search(self._caller, " ".join(texts(utterance))):
            lines.append(f"Time: {entry['timestamp']}")
            lines.append(f"{entry['author']}: {' '.join(texts(entry['content']))}")
        return text_content("user", _MEMORIES.format(lines="\n".join(lines))) if lines else None


def _concealed(part: PlainObject, conceal: Callable[[str], str]) -> PlainObject:
    """Replace secure digits in an artifact's bytes: models read text files, so digits there are concealed as well."""
    blob = part.get("inline_data")
    if not isinstance(blob, Mapping) or not isinstance(blob.get("data"), bytes):
        return part
    # Latin-1 gives every byte a character and back, so that binary data stays what it is.
    text = conceal(blob["data"].decode("latin-1"))
    return {**part, "inline_data": {**blob, "data": text.encode("latin-1")}}


Files = dict[str, list[Part]]
"""Artifacts: the versions under each name, each `{"text"}` or `{"inline_data": {"mime_type", "data"}}`."""
CALLER_PREFIX = "user:"
"""Prefix of the names of a caller's own artifacts, which are there in the caller's next call."""
MAX_BYTES = 8 * 1024 * 1024
"""Bytes of all versions of a call's artifacts."""
MAX_CALLERS_BYTES = 1024 * 1024
"""Bytes of all versions of a caller's own artifacts."""
MAX_VERSIONS = 200
"""Versions of a call's artifacts, and again of a caller's own."""
_TEXTS = ("application/csv", "application/json", "application/svg+xml", "application/xml")
_ENDINGS = (".csv", ".txt", ".json", ".xml")


class ArtifactRefused(CallagentError):
    """An artifact is neither text nor data, or the call may keep no more."""


class Artifacts:
    """The named, versioned files that a call's code and agents keep. Nothing of them is written to disk."""

    def __init__(self, callers: Files | None = None, keep: Callable[[Files], None] = lambda files: None) -> None:
        """`callers` are the caller's own artifacts, which outlive the call; `keep` is called when they change."""
        self._own: Files = {}
        self._callers: Files = {} if callers is None else callers
        self._keep = keep

    def save(self, name: str, part: Part) -> int:
        """Add a version and return its number, from 0. Raises `ArtifactRefused`."""
        files, limit = self._files(name), MAX_CALLERS_BYTES if name.startswith(CALLER_PREFIX) else MAX_BYTES
        # All versions count: project code may save the same name again and again.
        versions = [each for row in files.values() for each in row]
        size = _size(part)
        if size is None:
            raise ArtifactRefused(f"'{name}': a text or data is needed")
        if len(versions) >= MAX_VERSIONS or size + sum(_size(each) or 0 for each in versions) > limit:
            raise ArtifactRefused(f"'{name}': {MAX_VERSIONS} artifacts of {limit >> 20} MiB together are kept, no more")
        # A copy: whoever saves a part may go on changing it.
        files.setdefault(name, []).append(copy.deepcopy(part))
        if files is self._callers:
            self._keep(files)
        return len(files[name]) - 1

    def load(self, name: str, version: int | None = None) -> Part | None:
        """Return a version, or the newest one; None when there is no such artifact."""
        versions = self._files(name).get(name) or []
        if version is None:
            return versions[-1] if versions else None
        return versions[version] if 0 <= version < len(versions) else None

    def names(self) -> list[str]:
        return sorted([*self._own, *self._callers])

    def find(self, wanted: str) -> Part | None:
        """Return the newest version by a name as models write it: they may leave the prefix `user:` out."""
        found = self.load(wanted)
        return found if found is not None else self.load(f"{CALLER_PREFIX}{wanted}")

    def _files(self, name: str) -> Files:
        return self._callers if name.startswith(CALLER_PREFIX) else self._own


def readable(part: Part, name: str) -> str:
    """Return an artifact as a text for a model; of binary data only name, type and size."""
    blob = part.get("inline_data")
    if not isinstance(blob, Mapping):
        return str(part.get("text") or "")
    kind = str(blob.get("mime_type") or "application/octet-stream").partition(";")[0].strip().lower()
    data = blob.get("data") or b""
    raw = data if isinstance(data, bytes) else str(data).encode()
    if kind.startswith("text/") or kind in _TEXTS or name.lower().endswith(_ENDINGS):
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
"""Callers with memories; the one who has not called for longest is dropped first."""
MAX_CALLS = 10
"""Calls remembered of one caller."""
MAX_ENTRIES = 200
"""Entries remembered of one call: its last ones."""
MAX_FOUND = 10
"""Entries that a search returns."""


class Memory:
    """What was said in earlier calls, by caller. It is searched by words, and gone when the server ends."""

    def __init__(self) -> None:
        self._callers: OrderedDict[Hashable, OrderedDict[Hashable, list[Entry]]] = OrderedDict()

    def keep_call(self, caller: Hashable, call: Hashable, entries: Iterable[Entry]) -> None:
        """Keep the entries of a call in place of those kept of it before."""
        # Both dicts are in the order of their last change: the first entry is the one to drop.
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
        wanted = _words(query)
        found = []
        for entry in (each for call in self._callers.get(caller, {}).values() for each in call):
            text = " ".join(texts(entry["content"]))
            has, folded = _words(text), unicodedata.normalize("NFC", text).lower()
            # Japanese and Chinese have no spaces between words: a word of the query may be any part of the text.
            shared = sum(word in has or (not word.isascii() and word in folded) for word in wanted)
            if shared:
                found.append((shared, entry))
        # Python's sort is stable, so entries with as many shared words stay in the order in which they were said.
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
    # NFC: recognisers and models write "é" as one character or as two.
    found = {word.lower() for word in re.findall(r"\w+", unicodedata.normalize("NFC", text))}
    foreign = [word for word in found if not word.isascii()]
    return found | {part for word in foreign for part in re.findall(r"[a-z0-9_]+|[^a-z0-9_]+", word)}
