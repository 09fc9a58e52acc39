"""The events and the state of one call, and which agent has the conversation.

The state is plain data under keys whose prefix is their scope (`user:`, `app:`, `temp:`; none: the call).
"""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from callagent.agents.kernel import Vault
from callagent.agents.tree.call_storage import Artifacts, CallStorage, Files, Memory
from callagent.agents.tree.events import USER, Content, Event, PlainObject, calls, parts, responses, text_content, texts
from callagent.agents.tree.nodes import LlmNode, Node
from callagent.agents.tree.transfer import may_begin_turn, transfer_targets
from callagent.agents.tree.worker_protocol import StateChanges
from callagent.json_values import MutableJsonObject

APP, USER_SCOPE, TEMP = "app:", "user:", "temp:"
"""Prefixes of keys: shared by all calls of the project, by those of the same caller, dropped at the end of the turn."""
MAX_USERS = 10_000
"""Callers whose `user:` keys are kept; the one whose keys have not changed for longest is dropped first."""
MAX_USERS_WITH_FILES = 100
"""Callers whose `user:` artifacts are kept."""


class State:
    """The state that the agents of one call share, and which of its keys the worker does not know yet."""

    def __init__(self, values: PlainObject | None = None) -> None:
        self.values: MutableJsonObject = copy.deepcopy(dict(values or {}))
        self._unsent: MutableJsonObject = dict(self.values)
        self._unsent_removed: set[str] = set()

    def apply(self, delta: PlainObject, removed: Sequence[str] = ()) -> None:
        """Set and remove keys on the core's side. Values that do not change are not sent to the worker."""
        # A copy, because the owner of the delta may go on changing the values in it.
        # Most deltas repeat what the worker itself has written (`apply_worker_changes`), which it need not be sent.
        changed = copy.deepcopy({key: value for key, value in delta.items() if not self._has(key, value)})
        gone = [key for key in removed if key in self.values]
        self._set(changed, gone)
        self._unsent.update(changed)
        self._unsent_removed = (self._unsent_removed - changed.keys()) | set(gone)
        for key in gone:
            self._unsent.pop(key, None)

    def apply_worker_changes(self, delta: PlainObject, removed: Sequence[str] = ()) -> None:
        """Set and remove keys that the worker has set and removed in its own copy already."""
        self._set(copy.deepcopy(dict(delta)), removed)

    def unsent_changes(self) -> StateChanges:
        """Return the changes that the worker does not know yet."""
        return {"set": dict(self._unsent), "removed": sorted(self._unsent_removed)}

    def mark_sent(self) -> None:
        """Regard all changes as known to the worker."""
        self._unsent.clear()
        self._unsent_removed.clear()

    def mark_unknown(self) -> None:
        """Regard all keys as unknown to the worker, because it has been replaced."""
        self._unsent = dict(self.values)

    def drop_temporary(self) -> None:
        """Remove the `temp:` keys at the end of a turn."""
        self.apply({}, [key for key in self.values if key.startswith(TEMP)])

    def _has(self, key: str, value: object) -> bool:
        return key in self.values and self.values[key] == value

    def _set(self, delta: PlainObject, removed: Sequence[str]) -> None:
        self.values.update(delta)
        for key in removed:
            self.values.pop(key, None)


class SharedState:
    """The data that outlive a call: `app:` keys of a project, and `user:` keys, artifacts and memories of its callers.

    They are in this process only and are lost when the server ends. Nothing is kept for callers without a number.
    """

    def __init__(self) -> None:
        self._app: MutableJsonObject = {}
        self._users: OrderedDict[str, MutableJsonObject] = OrderedDict()
        self._files: OrderedDict[str, Files] = OrderedDict()
        self.memory = Memory()

    def files(self, user: str) -> Files:
        """Return the caller's artifacts."""
        return self._files.get(user, {})

    def keep_files(self, user: str, files: Files) -> None:
        """Keep the artifacts of a caller; those of callers without a number are not kept."""
        if not user:
            return
        self._files[user] = files
        self._files.move_to_end(user)
        if len(self._files) > MAX_USERS_WITH_FILES:
            self._files.popitem(last=False)

    def initial_values(self, user: str) -> MutableJsonObject:
        """Return a copy of the keys that a call of this caller starts with."""
        return copy.deepcopy({**self._app, **self._users.get(user, {})})

    def keep_changes(self, user: str, delta: PlainObject, removed: Sequence[str]) -> None:
        """Take over the `app:` and `user:` keys that a call of this caller has changed."""
        # A removed key may be of either scope; its prefix says which, and the other one does not have it.
        for key in removed:
            self._app.pop(key, None)
            self._users.get(user, {}).pop(key, None)
        self._app.update({key: copy.deepcopy(value) for key, value in delta.items() if key.startswith(APP)})
        own = {key: copy.deepcopy(value) for key, value in delta.items() if key.startswith(USER_SCOPE)}
        if not own or not user:
            return
        self._users.setdefault(user, {}).update(own)
        self._users.move_to_end(user)
        if len(self._users) > MAX_USERS:
            self._users.popitem(last=False)


Change = tuple[PlainObject, Sequence[str]]
"""Keys set and keys removed."""
_NOTHING = object()


def merge_changes(before: PlainObject, changes: Sequence[Change]) -> list[Change]:
    """Merge the changes of code that ran concurrently, each piece on its own copy of the state `before`.

    `changes` are in the order in which the code ended: where two changed the same value, at whatever depth of nested
    objects, the last one wins. Returns each change with its keys' merged values, so that applying the changes in any
    order gives the merged state.
    """
    after: PlainObject = before
    for changed, removed in changes:
        own = {key: value for key, value in {**before, **changed}.items() if key not in removed}
        after = _merged_objects(before, after, own)
    return [_agreed(after, [*changed, *removed]) for changed, removed in changes]


def _agreed(after: PlainObject, keys: Sequence[str]) -> Change:
    return {key: after[key] for key in keys if key in after}, [key for key in keys if key not in after]


def _merged(before: object, first: object, second: object) -> object:
    """Return `first` with what `second` changed relative to `before`."""
    if isinstance(before, Mapping) and isinstance(first, Mapping) and isinstance(second, Mapping):
        return _merged_objects(before, first, second)
    return second


def _merged_objects(before: PlainObject, first: PlainObject, second: PlainObject) -> PlainObject:
    merged = {}
    for key in {**first, **second}:
        old, one, other = (each.get(key, _NOTHING) for each in (before, first, second))
        value = one if _same(other, old) else other if _same(one, old) else _merged(old, one, other)
        if value is not _NOTHING:
            merged[key] = value
    return merged


def _same(one: object, other: object) -> bool:
    return one is other or bool(one == other)


class Conversation:
    """The history and the state of a call. Only `append` adds to them, so that they agree."""

    def __init__(
        self, root: Node, state: State, shared: SharedState, user: str, clock: Callable[[], float] | None = None
    ) -> None:
        """`user` is the caller's number, or empty. `clock` gives the events' Unix time; None: they have none."""
        self.root = root
        self.state = state
        self.vault = Vault()
        artifacts = Artifacts(shared.files(user), lambda files: shared.keep_files(user, files))
        self.storage = CallStorage(artifacts, shared.memory, user)
        self.events: list[Event] = []
        self.sent_events = 0
        """Number of leading events that the worker knows; the events after them are new or have been corrected."""
        self._entered: Node | None = None
        self._shared = shared
        self._user = user
        self._clock = clock
        self._numbers = itertools.count(1)
        self._functions = itertools.count(1)

    def new_number(self) -> int:
        """Return the next number for an event or a tool call of this call."""
        return next(self._numbers)

    def new_function_number(self) -> int:
        """Return the next number for a function call, which its `FunctionStarted` and `FunctionEnded` have."""
        return next(self._functions)

    def continue_from(self, outer: Conversation) -> None:
        """Share the counters, secure digits, clock and storage of the call with the conversation of an agent tool."""
        self._numbers, self._functions, self.vault = outer._numbers, outer._functions, outer.vault
        self._clock = outer._clock
        self.storage = outer.storage

    def append(self, event: Event) -> None:
        """Add an event to the history and apply its changes to the state; the history leaves `temp:` keys out."""
        event.id = event.id or f"event-{self.new_number()}"
        event.at = event.at or (int(self._clock()) if self._clock is not None else 0)
        actions = event.actions
        self.state.apply(actions.state_delta, actions.removed)
        self._shared.keep_changes(self._user, actions.state_delta, actions.removed)
        actions.state_delta = {key: value for key, value in actions.state_delta.items() if not key.startswith(TEMP)}
        self.events.append(event)

    def enter(self, node: Node) -> bool:
        """Note which agent has the conversation now; return whether it is another one than before."""
        changed, self._entered = self._entered is not node, node
        return changed

    def take_caller(self, content: Content, invocation_id: str) -> None:
        """Add what the caller said, or a late result of a tool, to the history.

        A function response without an identifier belongs to the newest call of that function.
        """
        self.append(Event(USER, {**content, "parts": [self._with_id(part) for part in parts(content)]},
                          invocation_id=invocation_id))  # fmt: skip

    def active(self) -> Node:
        """Return the agent at which the next turn begins.

        That is the agent that called the tool whose late result is the newest event; else the newest transfer's
        target, or the last agent that spoke, if all agents above it may be transferred from; else the root.
        """
        newest = self.events[-1] if self.events else None
        if newest is not None and newest.author == USER and (results := responses(newest.content)):
            return self._author_of_call(results[0]["id"]) or self.root
        for event in reversed(self.events):
            # A failure event does not decide who has the conversation.
            if event.author == USER or event.error is not None:
                continue
            if (target := self._transferred_to(event)) is not None:
                return target
            if event.author == self.root.name:
                return self.root
            node = self.root.find(event.author)
            if node is not None and may_begin_turn(node):
                return node
        return self.root

    def reopen(self, since: int) -> None:
        """Drop the turn that began at event `since`, because the caller went on speaking; the next turn has all words.

        A turn in which a tool was called or the state changed stays, because that cannot be undone.
        """
        # A `state_delta` may also come from a callback without any tool.
        dropped = self.events[since:]
        if any(calls(event.content) or responses(event.content) or event.actions.state_delta for event in dropped):
            return
        del self.events[since:]
        self.sent_events = min(self.sent_events, since)

    def correct(self, since: int, heard_text: str) -> None:
        """Cut the agents' texts from event `since` on to the words that the caller has heard of them."""
        left = len(heard_text.split())  # words of `heard_text` that no event has used up yet
        utterances = [event for event in self.events[since:] if event.author != USER and texts(event.content)]
        # The last utterance counts as interrupted even when all its words were heard.
        for event in utterances[-1:]:
            event.interrupted = True
        for index in range(since, len(self.events)):
            event = self.events[index]
            if event.author == USER or not texts(event.content):
                continue
            # Only texts are cut. Calls and responses stay, because the tools have run.
            corrected = []
            for part in parts(event.content):
                if part.get("text") and not part.get("thought"):
                    words = part["text"].split()
                    text = part["text"] if len(words) <= left else " ".join(words[:left])
                    event.interrupted = event.interrupted or len(words) > left
                    left -= min(left, len(words))
                    part = {**part, "text": text}
                corrected.append(part)
            event.content = {**(event.content or text_content("model")), "parts": corrected}
            # The worker has the uncut event, so it is sent again with the next request.
            self.sent_events = min(self.sent_events, index)

    def _transferred_to(self, event: Event) -> Node | None:
        source = self.root.find(event.author) if event.actions.transfer_to_agent else None
        if not isinstance(source, LlmNode):
            return None
        targets = transfer_targets(source)
        named = (node for node in targets if node.name == event.actions.transfer_to_agent)
        return next((node for node in named if may_begin_turn(node)), None)

    def _author_of_call(self, identifier: str) -> Node | None:
        for event in reversed(self.events):
            if any((part.get("function_call") or {}).get("id") == identifier for part in parts(event.content)):
                return self.root.find(event.author)
        return None

    def _with_id(self, part: Content) -> Content:
        response = part.get("function_response")
        if not response or response.get("id"):
            return part
        for event in reversed(self.events):
            for call in reversed(calls(event.content)):
                if call["name"] == response.get("name"):
                    return {**part, "function_response": {**response, "id": call["id"]}}
        return part
