"""What pages ask of the store is read and shaped in a process of its own: no query holds up a call's audio."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import signal
import sqlite3
import wave
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Final, ParamSpec, TypeVar

from callagent.audio import SAMPLE_RATE
from callagent.errors import CallagentError
from callagent.records.query import Statement

QUERY_SECONDS: Final = 20.0
_HIDDEN: Final = "[hidden]"
# The texts that say neither who called nor what was said. Whatever is not here is hidden: a new field is until somebody
# decides otherwise.
_SHOWN_TEXTS: Final = frozenset(
    {
        *("id", "project_id", "account_id", "environment", "channel", "direction", "wire", "peer_call_id"),
        *("started_at", "answered_at", "ended_at", "end_reason", "variant_name", "language", "flow", "step"),
        *("handoff_outcome", "end_function", "user_input_datetime", "agent_response_datetime", "written_at"),
        *("name", "kind", "what", "role", "provider", "method", "status", "template", "limit"),
        *("at", "floor", "state", "goto_flow", "goto_step"),
    }
)
# Names of places, unless an operator or a project dialled a number.
_PLACES: Final = frozenset({"handoff_destination", "target"})
_NUMBER: Final = re.compile(r"\+?[\d\s().-]{5,}")
# What projects and callers filled: here no name is ours, and numbers and truth values are hidden too.
_HIDDEN_DATA: Final = frozenset({"arguments", "result", "error", "logs", "state_changes", "entities"})

Row = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")


class StoreUnavailable(CallagentError):
    """The store does not answer."""


class ReadingProcess:
    """Runs functions of this package elsewhere, one at a time; a process that died is replaced."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises what `function` raises, and `StoreUnavailable`."""
        assert not kwargs, "arguments are given by place"
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, initializer=_begin)
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
        except (BrokenProcessPool, TimeoutError) as error:
            self._end(self._pool)
            raise StoreUnavailable(f"the store could not be read: {error or 'it took too long'}") from None

    async def close(self) -> None:
        if self._pool is not None:
            self._end(self._pool)

    def _end(self, pool: ProcessPoolExecutor) -> None:
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None


def _begin() -> None:
    # The server decides when it ends; an interrupt at the terminal reaches both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_connections: dict[Path, sqlite3.Connection] = {}


def fetch(path: Path, statements: Sequence[Statement]) -> list[list[Row]]:
    """The rows of each statement. Raises `StoreUnavailable`."""
    try:
        connection = _connections.get(path) or _connect(path)
        results = []
        for statement in statements:
            cursor = connection.execute(statement.sql, statement.values)
            names = [column[0] for column in cursor.description]
            results.append([dict(zip(names, row, strict=True)) for row in cursor])
    except sqlite3.Error as error:
        _connections.pop(path, None)
        raise StoreUnavailable(f"the store could not be read: {error}") from None
    return results


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
    connection.execute("PRAGMA busy_timeout = 2000")
    connection.execute("PRAGMA cache_size = -65536")
    _connections[path] = connection
    return connection


def call_json(record: str, end_attempts: int, metrics: Sequence[Row], personal: bool) -> str:
    """A call's record for a reader; without the right to see personal data, words and numbers are hidden."""
    data = json.loads(record)
    data["metrics"] = [
        {"name": metric["name"], "value": json.loads(metric["value"]), "written_at": metric["written_at"]}
        for metric in metrics
    ]
    data["end_attempts"] = end_attempts
    data["recording"] = bool(data["recording"])
    return json.dumps(data if personal else hide_personal_data(data), ensure_ascii=False)


def hide_personal_data(data: Any) -> Any:
    """The data with everything in it hidden that tells who called or what was said."""
    if isinstance(data, str):
        return _HIDDEN if data else data
    if isinstance(data, list):
        return [hide_personal_data(one) for one in data]
    if not isinstance(data, Mapping):
        return data
    outbound = data.get("direction") == "outbound"
    return {name: _shown(name, value, outbound=outbound) for name, value in data.items()}


def _shown(name: str, value: Any, *, outbound: bool) -> Any:
    if name in _HIDDEN_DATA or (name == "state" and isinstance(value, Mapping)):
        return _HIDDEN if isinstance(value, str) and value else type(value)() if value else value
    if not isinstance(value, str):
        return hide_personal_data(value)
    if name == "to_number":
        # Ours, unless we called.
        return mask(value) if outbound else value
    if name == "from_number" or (name in _PLACES and _NUMBER.fullmatch(value)):
        return mask(value)
    return value if name in _SHOWN_TEXTS or name in _PLACES else hide_personal_data(value)


def mask(number: str | None) -> str | None:
    """The last two digits, as much as tells two callers apart."""
    return "•••" + number[-2:] if number else number


def waveform(path: Path, points: int) -> dict[str, Any]:
    """Seconds and the loudest sample (0 to 1) of each part of a stereo recording. Raises `OSError`."""
    import audioop

    caller, agent = [], []
    try:
        with wave.open(_wav(path), "rb") as file:
            frames, rate = file.getnframes(), file.getframerate()
            part = max(1, -(-frames // points))
            while pcm := file.readframes(part):
                caller.append(round(audioop.max(audioop.tomono(pcm, 2, 1, 0), 2) / 32768, 3))
                agent.append(round(audioop.max(audioop.tomono(pcm, 2, 0, 1), 2) / 32768, 3))
    except (wave.Error, EOFError) as error:
        raise OSError(f"{path.name} is no recording: {error}") from None
    return {"seconds": frames / rate, "caller": caller, "agent": agent}


def _wav(path: Path) -> IO[bytes]:
    """The recording as a WAV file; others are decoded by ffmpeg."""
    if path.suffix == ".wav":
        return path.open("rb")
    from pydub import AudioSegment
    from pydub.exceptions import PydubException

    try:
        with path.open("rb") as encoded:
            decoded = AudioSegment.from_file(encoded, format="ogg" if path.suffix == ".opus" else path.suffix[1:])
    except PydubException as error:
        raise OSError(f"{path.name} is no recording: {error}") from None
    file = BytesIO()
    decoded.set_sample_width(2).set_frame_rate(SAMPLE_RATE).export(file, format="wav")
    file.seek(0)
    return file
