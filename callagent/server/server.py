"""The server: opens the sockets, admits calls, drains them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from callagent import log as logs
from callagent import phone_numbers
from callagent.agents import AgentProject, Handoff
from callagent.call import Call, CallServices, CallSettings, Event
from callagent.call_info import NO_HEADERS, EndReason
from callagent.config import Config, override
from callagent.errors import UserError
from callagent.legs import CallLeg, TransferTarget
from callagent.models import MeteredModel, lineup_of
from callagent.observability import provider_metrics
from callagent.records import RecordWriter, Spool, Store, spool_folder, warn_of_shared_disk
from callagent.server.admission import Admission, raise_descriptor_limit
from callagent.server.listeners import Signalling, SignallingLimits, host_and_port, open_http
from callagent.server.observers import Observers, redaction_of
from callagent.server.outbound import place_call, resolve_target
from callagent.server.process_health import (
    QuietCollections,
    Watchdog,
    limit_malloc_arenas,
    reduce_garbage_collection,
)
from callagent.server.projects import Route, Router, open_language_model
from callagent.server.recovery import Recovery
from callagent.server.speech import CallSpeech
from callagent.turns import TurnManager
from callagent.web import Controls, DialRefused, DialRequest, ServerHooks, TurnWatcher, captions_of

log = logs.get_logger(__name__)

SWITCH_INTERVAL: Final = 0.0002
"""Seconds after which the interpreter lets the pump thread in; the figures are in docs/benchmarks.md."""
RETRY_AFTER_SECONDS: Final = 5
"""Retry-After of a server that has no room for one more call."""
BUSY_SECONDS: Final = 60
"""Retry-After for a caller who has made as many calls as one number may."""
CLOSING_SECONDS: Final = 45.0
"""Longest time for calls that were asked to end: last words, end functions, records."""


def run(config: Config, project: Path) -> int:
    """Run `callagent serve` until a signal ends it; return the exit status."""
    logs.configure(config.log.level, json=config.log.json_lines, redact=redaction_of(config).value)
    sys.setswitchinterval(SWITCH_INTERVAL)
    limit_malloc_arenas()
    config = _fit_to_descriptors(config)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(config, project))
    return 0


def _fit_to_descriptors(config: Config) -> Config:
    """Raise the limit of file descriptors to what `limits.calls` needs; if that is refused, lower `limits.calls`."""
    wanted = config.limits.calls
    calls = raise_descriptor_limit(wanted)
    if calls == wanted:
        return config
    log.warning(
        "too_few_file_descriptors",
        calls=calls,
        wanted=wanted,
        remedy="raise the hard limit of open files (LimitNOFILE= of the service, ulimits of the container)",
    )
    return override(config, {"limits.calls": calls})


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(config: Config, project: Path) -> None:
    """Open everything, print that the server is ready, serve until SIGTERM or SIGINT, drain. Raises `UserError`."""
    if not config.sip.enabled and not config.http.enabled:
        raise UserError("nothing to listen on: sip and http are both off; switch one on")
    async with AsyncExitStack() as stack:
        server = await Server.open(config, project, stack)
        lines = await server.listen(stack)
        # This takes 60 ms, for which no caller waits as long as the server has not said that it is ready.
        reduce_garbage_collection()
        # Signals are handled before the lines appear: whoever has read them may already ask the server to stop.
        server.handle_signals()
        for line in lines:
            print(line, flush=True)  # noqa: T201
        await server.serve()


class Server:
    """Owns the calls. Made by `open`; `listen` lets callers in, `serve` runs until a signal has ended everything."""

    def __init__(
        self,
        config: Config,
        router: Router,
        observers: Observers,
        speech: CallSpeech,
    ) -> None:
        self._config = config
        self._router = router
        self._speech = speech
        self._lineups = speech.lineups
        self._signalling: Signalling | None = None
        self._services = CallServices(
            observers.writer,
            self._resolve,
            speech.voice.has_voice,
            lambda peer_call_id: [] if self._signalling is None else self._signalling.legs.signalling(peer_call_id),
        )
        self._calls: dict[str, tuple[Call, asyncio.Task[None]]] = {}
        self._refusals: set[asyncio.Task[None]] = set()
        self._observers = observers
        self._admission = Admission(config, observers.metrics.limits_reached.add)
        self._recovering: asyncio.Task[None] | None = None
        """Ends the calls of a killed server."""
        self._watchdog = Watchdog()
        self._collections = QuietCollections()
        self._signals: asyncio.Queue[None] = asyncio.Queue()

    @classmethod
    async def open(cls, config: Config, project: Path, stack: AsyncExitStack) -> Server:
        """Open what calls need: store, model, projects, speech. `stack` closes it in the opposite order."""
        if config.records.recordings:
            _expect_folder(Path(config.records.recordings))
        records = config.records
        outbox = bool(records.database.get_secret_value())
        store = Store(Path(records.path), redaction=redaction_of(config), outbox=outbox)
        stack.push_async_callback(store.close)
        folder = spool_folder(records.spool, store.path)
        warn_of_shared_disk(folder, store.path)
        writer = RecordWriter(store, Spool(folder), redaction_of(config))
        stack.push_async_callback(writer.close)
        await writer.start()
        observers = await Observers.open(config, writer, stack)
        model = open_language_model(config)
        stack.push_async_callback(model.close)
        router = await Router.open(config, project, MeteredModel(model), stack)
        # Speech comes after the projects, whose mistakes show within a second: its models can take half a minute.
        speech = await CallSpeech.open(config.speech, stack)
        await speech.prepare(router.projects())
        phone_numbers.prepare()
        server = cls(config, router, observers, speech)
        recovery = Recovery(writer, router.project, config.limits.end_function_seconds, observers.ended)
        server._recovering = asyncio.create_task(recovery.run(), name="recovery")
        stack.callback(server._recovering.cancel)
        if (lineup := lineup_of(model)) is not None:
            server._lineups.append(lineup)
        return server

    async def listen(self, stack: AsyncExitStack) -> list[str]:
        """Open the sockets; return a line about each, and the login link. Raises `UserError` naming the setting."""
        lines: list[str] = []
        if self._config.sip.enabled:
            lines += await self._listen_sip(stack)
        if self._config.http.enabled:
            lines += await self._listen_http(stack)
        # The watchdog starts last: while everything is opened, the loop may stand still for longer than calls allow.
        self._watchdog.watch_loop()
        if self._signalling is not None:
            pump = self._signalling.pump
            self._watchdog.watch("sending clock", lambda: pump.moved_at, lambda: pump.thread)
        self._watchdog.start()
        stack.callback(self._watchdog.stop)
        return lines

    def handle_signals(self) -> None:
        """Have SIGTERM and SIGINT end `serve` from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signals.put_nowait, None)

    async def serve(self) -> None:
        """Serve until a signal, then let calls finish. A second signal ends every call at once."""
        await self._signals.get()
        # From here on new calls get 503, and `/ready` says so: a load balancer sends them elsewhere.
        self._admission.draining = True
        log.info("draining", calls=len(self._calls))
        # A second signal ends the wait for the calls to finish.
        again = asyncio.create_task(self._signals.get())
        await self._wait({again}, self._config.limits.drain_seconds)
        at_once = again.done()
        again.cancel()
        for call, _ in self._calls.values():
            if at_once:
                call.end(EndReason.DRAIN)
            else:
                call.close_down()
        await self._wait(set(), CLOSING_SECONDS)
        # End functions of lost calls write to the store as well; while it fails, waiting for them would be in vain.
        if self._recovering is not None and self._observers.writer.failing is None:
            await asyncio.wait({self._recovering}, timeout=CLOSING_SECONDS)
        log.info("stopped", calls_cut=len(self._calls))

    async def _wait(self, also: set[asyncio.Task[None]], seconds: float) -> None:
        """Wait until no call is left, one of `also` is done, or the time is up."""
        try:
            async with asyncio.timeout(seconds):
                while self._calls and not any(task.done() for task in also):
                    tasks = {task for _, task in self._calls.values()} | also
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass

    # Calls ----------------------------------------------------------------------------------------------------------

    def admit(self) -> bool:
        """Return whether one more call fits."""
        return self._admission.has_room(len(self._calls))

    def _take_sip_call(self, leg: CallLeg) -> None:
        if self._admission.accepts(leg.info):
            self.take_call(leg)
        else:
            self._refuse(leg, EndReason.BUSY)

    def take_call(self, leg: CallLeg) -> None:
        """Answer a call that was admitted."""
        # A carrier's stream begins some time after its call was accepted; others of the caller may have begun since.
        if not self._admission.may_begin(leg.info):
            self._refuse(leg, EndReason.BUSY)
            return
        route = self._router.route(leg.info.callee)
        if route is None:
            log.warning("number_not_routed", callee=leg.info.callee)
            self._observers.metrics.calls_refused.add()
            self._refuse(leg)
            return
        # A call that cannot begin is refused, and the signalling goes on to the next.
        with log.contain("call_not_begun", call=leg.info.call_id):
            self._begin(leg, route)

    def hold_session(self, leg: CallLeg, project: AgentProject, watcher: TurnWatcher) -> asyncio.Task[None]:
        """Run a call of the Session API, which was admitted, with the project that its client chose."""
        return self._begin(leg, Route(project, self._router.environment(project)), watcher)

    async def dial(self, request: DialRequest) -> str:
        """Place a call; return its identifier. The project is that of the number it comes from.

        Raises `CallagentError`.
        """
        route = self._router.route(request.from_number or None)
        if route is None or self._signalling is None:
            raise DialRefused(f"no project answers for number '{request.from_number}'")
        try:
            leg = await place_call(request, self._config, self._signalling.legs)
        except DialRefused as refusal:
            self._admission.report_limit(refusal.limit, trunk=request.trunk)
            raise
        self._begin(leg, route)
        return leg.info.call_id

    def _begin(self, leg: CallLeg, route: Route, watcher: TurnWatcher | None = None) -> asyncio.Task[None]:
        with ExitStack() as undo:
            undo.callback(self._refuse, leg, EndReason.ERROR)
            call = self._make_call(leg, route, watcher)
            undo.pop_all()
        # From here on nothing may fail: the counts of started and ended calls have to agree.
        self._observers.started(leg.info)
        self._admission.callers.add_call(leg.info)
        task = asyncio.create_task(self._run_call(call), name=f"call {leg.info.call_id}")
        self._calls[leg.info.call_id] = (call, task)
        return task

    def live_calls(self) -> dict[str, Call]:
        """Return the calls that are on, by identifier."""
        return {call_id: call for call_id, (call, _) in self._calls.items()}

    def metrics(self) -> str:
        """Return all metrics as Prometheus text."""
        draining = float(self._admission.draining)
        gauges = {
            "callagent_calls_live": ("Calls that are on.", float(len(self._calls))),
            "callagent_calls_limit": ("Calls that fit at a time.", float(self._config.limits.calls)),
            "callagent_draining": ("1: running calls may finish, no new ones are taken.", draining),
        }
        trunks = [] if self._signalling is None else self._signalling.metrics()
        lines = [*trunks, *provider_metrics(self._lineups), *self._watchdog.metrics()]
        return self._observers.text(gauges) + "".join(f"{line}\n" for line in lines)

    def _make_call(self, leg: CallLeg, route: Route, watcher: TurnWatcher | None) -> Call:
        config = self._config
        recordings = Path(config.records.recordings) if config.records.recordings else None
        settings = CallSettings(
            environment=route.environment,
            fallback=route.fallback,
            answer_after=config.limits.start_function_seconds,
            transfers=config.limits.transfers,
            model_tokens=config.limits.model_tokens,
            longest_call=config.limits.call_seconds,
            end_function_timeout=config.limits.end_function_seconds,
            recordings=recordings,
            filler_after=config.model.filler_after,
            language=config.speech.language,
        )

        def make_turn_manager(emit: Callable[[Event], None]) -> TurnManager:
            return self._speech.make_turn_manager(route.project, emit, watcher)

        return Call(leg, route.project, make_turn_manager, self._services, settings)

    async def _run_call(self, call: Call) -> None:
        try:
            with log.contain("call_task_failed", call=call.leg.info.call_id) as boundary:
                record = await call.run()
                await self._observers.ended(record)
            if boundary.error is not None:
                # `Call.run` has a boundary of its own. If even that fails, nobody is left on a silent line.
                self._refuse(call.leg, EndReason.ERROR)
        finally:
            self._admission.callers.remove_call(call.leg.info)
            del self._calls[call.leg.info.call_id]
            if not self._calls:
                self._collections.collect_if_due()

    def _refuse(self, leg: CallLeg, reason: EndReason = EndReason.REJECTED) -> None:
        call_id = leg.info.call_id
        # BUSY is 486 (RFC 3261 §21.4.24): a 503 would send the call to our next server, which counts for itself.
        headers = {"Retry-After": str(BUSY_SECONDS)} if reason is EndReason.BUSY else NO_HEADERS
        task = asyncio.create_task(leg.hang_up(reason, headers), name=f"refuse {call_id}")
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)

    def _resolve(self, handoff: Handoff) -> TransferTarget:
        return resolve_target(handoff, self._config.targets, self._config.sip.transfer_headers)

    # Sockets --------------------------------------------------------------------------------------------------------

    async def _listen_sip(self, stack: AsyncExitStack) -> list[str]:
        self._signalling = await Signalling.open(
            self._config.sip,
            self._take_sip_call,
            lambda: None if self.admit() else RETRY_AFTER_SECONDS,
            stack,
            SignallingLimits(
                self._config.limits.transfer_attempts,
                lambda limit, trunk: self._admission.report_limit(limit, trunk=trunk),
            ),
        )
        addresses = self._signalling.addresses
        return [f"ready sip {transport} {host_and_port(host, port)}" for transport, host, port in addresses]

    async def _listen_http(self, stack: AsyncExitStack) -> list[str]:
        hooks = ServerHooks(
            on_carrier_call=self.take_call,
            admit=self.admit,
            accepts=self._admission.accepts,
            draining=lambda: self._admission.draining,
            stalled_threads=lambda: self._watchdog.still,
            store_failing=lambda: self._observers.writer.failing is not None,
            metrics=self.metrics,
            external=self._router.external,
            captions=lambda call_id: captions_of(self._calls[call_id][0]) if call_id in self._calls else None,
            # Without SIP, a caller on our own page cannot be transferred to a number.
            dial=None if self._signalling is None else self._signalling.legs.dial_for,
            hold_session=self.hold_session,
            utterances=self._speech.utterances(),
        )
        controls = Controls(
            [target.name for target in self._config.targets if target.name],
            any(target.prefix for target in self._config.targets),
            self.dial if self._signalling else None,
            self.admit,
        )
        dashboard = self._observers.dashboard(self.live_calls, self._router.projects, stack)
        return await open_http(self._config, hooks, replace(dashboard, controls=controls), stack)


def _expect_folder(path: Path) -> None:
    """Make the folder of recordings. Raises `UserError` if it cannot be written, before any call needs it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"records.recordings '{path}' cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UserError(f"records.recordings '{path}' cannot be written; let the server's user write there")
