"""The functions of one project in a worker: `FlowRuntime` for the process, `FlowSession` for one call."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import pickle
import time
from collections.abc import Mapping
from pathlib import Path

from callagent.agents.flows.runtime import plog
from callagent.agents.flows.runtime.api_types import NotAvailable
from callagent.agents.flows.runtime.clock import Clock
from callagent.agents.flows.runtime.conversation import Conversation, Effects, Flow, Metrics, Parts
from callagent.agents.flows.runtime.function_calls import bind, takes_flow
from callagent.agents.flows.runtime.importer import Catalog
from callagent.agents.flows.runtime.integrations import ApiIntegrations, Mocks, RemoteFunctions
from callagent.agents.flows.runtime.state import Memory, State, StateChange, StateKeeper, Variant, VerifiedContext
from callagent.agents.flows.runtime.utils import Secrets, Utils
from callagent.agents.kernel import TooLarge, error_report, to_json
from callagent.json_values import MutableJsonObject
from callagent.workers import AskFailed, Channel, Plain

RETURN_LIMIT = 1024 * 1024
"""Bytes of a returned value as JSON; a language model is shown far less of it."""
_STATE_PREFIX = "state:"
_SESSION = "session"
"""Key of disabled topics and variants in a checkpoint; the keys with `_STATE_PREFIX` are those of `conv.state`."""


class FlowSession:
    """One call in a worker: its `conv` and the requests of the core."""

    def __init__(self, catalog: Catalog, context: Plain, checkpoint: Mapping[str, bytes],
                 channel: Channel) -> None:  # fmt: skip
        self._catalog = catalog
        self._log = plog.ConversationLogger(channel.send)
        self._remote = RemoteFunctions(context.get("mcp") or {}, lambda name: self._utils.get_secret(name))
        state = State()
        self._keeper = StateKeeper(state)
        self._utils = Utils(channel, _secrets(channel, context), _clock(context))
        parts = Parts(
            state=state,
            log=self._log,
            metrics=Metrics(channel, self._log),
            utils=self._utils,
            clock=_clock(context),
            memory=Memory(context.get("memory"), context.get("line_memory")),
            verified_context=VerifiedContext(),
            api=lambda log: ApiIntegrations(
                context.get("api") or {}, Mocks(context.get("api_mocks") or {}), self._utils.get_secret, log
            ),
            expect_event=lambda send_to_llm: _expect_event(channel, send_to_llm),
            account_id=str(context.get("account_id") or ""),
            project_id=str(context.get("project_id") or ""),
        )
        self._conv = Conversation(parts, catalog.global_function)
        if self._conv.clock.pinned is not None:
            catalog.pin(self._conv.clock.pinned)
        self._session_pickle = b""
        plog.use(self._log)
        self._restore(checkpoint)

    def handle(self, request: Plain) -> Plain:
        plog.use(self._log)
        match request.get("op"):
            case "run":
                return self._run(request)
            case "set_state":
                self._conv.state.update(request.get("values") or {})
                return self._state_answer(self._keeper.take_changes())
            case "describe":
                return {"functions": self._catalog.describe()}
            case "describe_remote":
                return self._remote.describe()
            case other:
                raise ValueError(f"unknown request {other!r}")

    # A run --------------------------------------------------------------------------------------------------------

    def _run(self, request: Plain) -> Plain:
        started = time.monotonic()
        effects = Effects()
        topics = list(self._conv.knowledge_base.disabled_topics)
        self._utils.begin_run()
        # New effects for each run, because those of an earlier function have been applied.
        self._conv._begin(request.get("conv") or {}, effects)
        returned: object = None
        returned_json: object = None
        error: dict[str, str] | None = None
        try:
            returned = self._call(request["function"], request.get("arguments") or {}, effects)
            returned_json = to_json(returned, RETURN_LIMIT)
        except BaseException as raised:  # the edge of a function run: sys.exit() ends the function only
            error = _report(raised)
            self._log.error(f"function failed: {error['type']}: {error['message']}", traceback=error["traceback"])
        # The whole list, and only if it changed: None tells the engine that it has not.
        if self._conv.knowledge_base.disabled_topics != topics:
            effects.disabled_topics = list(self._conv.knowledge_base.disabled_topics)
        effects.shown = self._conv._take_shown()
        # After a failure, too: changes that the function made before it raised remain.
        change = self._keeper.take_changes()
        return {
            "returned": returned_json,
            "returned_kind": _kind(returned),
            "error": error,
            "effects": self._plain(effects),
            **self._state_answer(change),
            "logs": self._log.take_entries(),
            "duration_ms": (time.monotonic() - started) * 1000,
        }

    def _call(self, function: Plain, arguments: Plain, effects: Effects) -> object:
        kind = function.get("kind") or "global"
        if kind == "remote":
            return self._remote.call(str(function.get("flow")), function["name"], arguments)
        # A global function may call `flow.functions` of the flow that the call is in.
        folder = function.get("flow") if kind in ("flow", "step") else self._conv.current_flow
        main = self._catalog.find(kind, function.get("flow"), function["name"]).main()
        bound, remarks = bind(main, arguments)
        for remark in remarks:
            self._log.warning(f"{function['name']}: {remark}")
        flow = Flow(self._conv, self._catalog.flow_function(folder), self._conv.current_step, effects)
        takes_conv = bool(inspect.signature(main).parameters)
        given = (self._conv, flow) if takes_flow(main) else (self._conv,) if takes_conv else ()
        returned = main(*given, **bound)
        # A project function may be a coroutine; it is run in an event loop of its own.
        return asyncio.run(returned) if inspect.iscoroutine(returned) else returned

    def _plain(self, effects: Effects) -> MutableJsonObject:
        try:
            return effects.plain()
        except TooLarge as error:
            self._log.error(f"the effects of the function are dropped: {error}")
            # Some of the effects would be worse than none, such as a transition without the words that go with it.
            return Effects().plain()

    # State --------------------------------------------------------------------------------------------------------

    def _state_answer(self, change: StateChange) -> Plain:
        for problem in change.problems:
            self._log.error(problem)
        # A prefix distinguishes keys of the state from the entry `_SESSION` in the same checkpoint.
        checkpoint = {_STATE_PREFIX + name: pickled for name, pickled in change.checkpoint.items()}
        # Sent only if it changed, because a checkpoint is sent to the core after each function.
        pickled = pickle.dumps((self._conv.knowledge_base.disabled_topics, _plain_variants(self._conv.variants)))
        if pickled != self._session_pickle:
            checkpoint[_SESSION] = self._session_pickle = pickled
        return {"state": self._keeper.view, "state_changes": change.summary(), "checkpoint": checkpoint}

    def _restore(self, checkpoint: Mapping[str, bytes]) -> None:
        pickles = {
            name.removeprefix(_STATE_PREFIX): pickled
            for name, pickled in checkpoint.items()
            if name.startswith(_STATE_PREFIX)
        }
        for problem in self._keeper.restore(pickles):
            self._log.error(problem)
        self._session_pickle = checkpoint.get(_SESSION, b"")
        if self._session_pickle:
            topics, variants = pickle.loads(self._session_pickle)
            self._conv.knowledge_base.disable_topics(topics)
            # Restored before the first snapshot, which does not replace variants that are there.
            self._conv.variants.update({name: Variant(values) for name, values in variants.items()})


def _expect_event(channel: Channel, send_to_llm: bool) -> str:
    try:
        return str(channel.ask({"type": "external_event", "send_to_llm": send_to_llm, "ask": True}))
    except AskFailed as error:
        raise NotAvailable(f"conv.generate_external_event: {error}") from None


def _plain_variants(variants: Mapping[str, Variant]) -> dict[str, object]:
    """Return the variants as plain data, without objects that project code put there: pickle may refuse them."""
    return {
        name: {key: value for key, value in values.items() if isinstance(value, (str, int, float, list, dict))}
        for name, values in variants.items()
    }


def _kind(returned: object) -> str:
    """Return the kind of a returned value, which its JSON does not show: an object of a class becomes a dict, too."""
    if returned is None:
        return "none"
    if isinstance(returned, str):
        return "str"
    return "dict" if isinstance(returned, dict) else "other"


def _report(raised: BaseException) -> dict[str, str]:
    report = error_report(raised)
    if isinstance(raised, TooLarge):
        report["message"] = f"the return value is too large: {report['message']}"
    return report


def _secrets(channel: Channel, context: Plain) -> Secrets:
    return Secrets(channel, context.get("secrets") or {})


def _clock(context: Plain) -> Clock:
    now = context.get("now")
    return Clock(datetime.datetime.fromisoformat(now) if now else None, context.get("timezone"))


IMPORT_LIMIT = 10.0
"""Seconds that one function file may take to import."""


class FlowRuntime:
    """The functions of one project, imported once, before workers are forked for its calls."""

    def __init__(self, project: Path, *, import_limit: float = IMPORT_LIMIT) -> None:
        self._catalog = Catalog(Path(project).resolve(), import_limit)

    def open(self, context: Plain, checkpoint: Mapping[str, bytes], channel: Channel) -> FlowSession:
        """Open the session of a call; with a checkpoint it continues where another worker stopped."""
        return FlowSession(self._catalog, context, checkpoint, channel)
