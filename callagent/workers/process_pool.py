"""The workers of one project as processes: a zygote that has it imported, a forked worker per call."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from callagent.errors import WorkerDied
from callagent.workers.lease import ProcessLease
from callagent.workers.private_folder import PrivateFolder, PrivateFolders
from callagent.workers.protocol import Plain, ProjectRuntime, WorkerSettings
from callagent.workers.zygote_process import WorkerProcess, ZygoteProcess


class ProcessPool:
    """`WorkerPool` with processes. A zygote that ends is replaced when the next worker is needed."""

    def __init__(self, runtime: ProjectRuntime, settings: WorkerSettings | None = None) -> None:
        self._runtime = runtime
        self._settings = settings or WorkerSettings()
        self._zygote: ZygoteProcess | None = None
        self._retired: set[ZygoteProcess] = set()
        self._leases: set[ProcessLease] = set()
        self._folders = PrivateFolders(self._settings.files, self._settings.file_size)
        self._start_lock = asyncio.Lock()
        self._closed = False

    async def start(self) -> None:
        """Import the project now instead of with the first lease. Raises `WorkerDied` when it cannot be imported."""
        await self._current_zygote()

    async def lease(self, context: Plain) -> ProcessLease:
        """Return a worker for one call. Raises `WorkerDied` when the project cannot be imported."""
        await self._current_zygote()
        lease = ProcessLease(
            self._fork, context, self._settings.output_bytes, self._make_folder(), self._on_lease_closed
        )
        self._leases.add(lease)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(lease.close)
            await lease.start()
            undo.pop_all()
        return lease

    async def reload(self) -> None:
        """Import the project anew for the leases to come; running calls keep the code that they began with.

        Raises `WorkerDied` when it cannot be imported; then nothing changes.
        """
        async with self._start_lock:
            fresh = await self._start_zygote()
            if self._zygote is not None:
                self._retired.add(self._zygote)
            self._zygote = fresh
        await self._stop_unused()

    async def close(self) -> None:
        """End every worker and zygote. Idempotent."""
        self._closed = True
        async with self._start_lock:
            for lease in list(self._leases):
                await lease.close()
            for zygote in [*self._retired, *([self._zygote] if self._zygote is not None else [])]:
                await zygote.stop()
            self._retired.clear()
            self._zygote = None
            await self._folders.close()

    async def _fork(self, zygote: ZygoteProcess | None, private: str) -> WorkerProcess:
        """Fork a worker; a replacement comes from the zygote of the call's first one, which has the same code."""
        if zygote is not None and zygote.alive:
            return await zygote.fork(private)
        if zygote is not None:
            zygote.leases -= 1
        current = await self._current_zygote()
        process = await current.fork(private)
        current.leases += 1
        return process

    async def _current_zygote(self) -> ZygoteProcess:
        # The lock makes calls that begin while the project is imported wait for the one zygote.
        async with self._start_lock:
            if self._closed:
                raise WorkerDied("the pool is closed")
            if self._zygote is None or not self._zygote.alive:
                self._zygote = await self._start_zygote()
            return self._zygote

    async def _on_lease_closed(self, lease: ProcessLease, zygote: ZygoteProcess | None) -> None:
        self._leases.discard(lease)
        if zygote is not None:
            zygote.leases -= 1
        await self._stop_unused()

    async def _start_zygote(self) -> ZygoteProcess:
        try:
            await self._folders.open()
        except OSError as error:
            raise WorkerDied(f"no folder for the project's workers can be made: {error}") from None
        folder = self._make_folder()
        async with AsyncExitStack() as undo:
            undo.push_async_callback(folder.remove)
            zygote = await ZygoteProcess.start(self._runtime, self._settings, folder)
            undo.pop_all()
        if excess := await folder.find_excess():
            await zygote.stop()
            raise WorkerDied(f"importing the project left {excess}")
        return zygote

    def _make_folder(self) -> PrivateFolder:
        try:
            return self._folders.make()
        except OSError as error:
            raise WorkerDied(f"no private folder for project code can be made: {error}") from None

    async def _stop_unused(self) -> None:
        for zygote in [zygote for zygote in self._retired if zygote.leases <= 0 or not zygote.alive]:
            self._retired.discard(zygote)
            await zygote.stop()
