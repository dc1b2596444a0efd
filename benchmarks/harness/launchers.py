"""Launchers that speak the protocol and start nothing: they report each order as carried out, like kubeai-run."""

import asyncio
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from simulator.cloud.process import TooLate
from supervisor.identity.tokens import Tokens

_LAUNCHER = "benchmark"
_INSTANCE = "benchmark-1"
_POLL_SECONDS = 0.01
_STOPPED = 3


class LauncherOrder(msgspec.Struct, frozen=True):
    """A line of a launcher's stream, received at `at`."""

    type: str
    order: str = ""
    phase: str = ""
    generation: int = 0
    run: int = 0
    exclusions: list[str] = []
    token: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """A job to register. Below `min_workers` hosts it is stopped."""

    name: str
    hosts: Sequence[str]
    min_workers: int
    framework: str = "horovod"


@dataclass(slots=True)
class LaunchedJob:
    """A registered job and the orders it received."""

    shape: JobShape
    report: dict[str, Any]
    orders: list[LauncherOrder] = field(default_factory=list)

    @property
    def token(self) -> str:
        """The job token of the present run; empty before there is one."""
        return next((order.token for order in reversed(self.orders) if order.order == "run" and order.run), "")

    @property
    def running(self) -> bool:
        """Whether its launcher has reported a running run."""
        return bool(self.report["running"])


class LoadLaunchers:
    """Registers jobs and answers their orders. A context manager.

    Args:
        url: The supervisor's URL.
        tokens: Signs its tokens.
        ca: The CA file, if it serves with TLS.
        acknowledges: Acknowledge a STOP at once, like a rank 0 whose checkpoint takes no time.
    """

    def __init__(self, url: str, tokens: Tokens, ca: Path | None = None, *, acknowledges: bool = True) -> None:
        self._url = url
        self._acknowledges = acknowledges
        self._headers = {"Authorization": f"Bearer {tokens.launcher(_LAUNCHER)}"}
        self._ca = ca
        self._stack = AsyncExitStack()
        self._http: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        trust = True if self._ca is None else ssl.create_default_context(cafile=self._ca)
        connector = aiohttp.TCPConnector(limit=0, ssl=trust)
        timeout = aiohttp.ClientTimeout(total=None)
        self._http = await self._stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    def launch(self, shapes: Iterable[JobShape]) -> list[LaunchedJob]:
        """Register these jobs in the background."""
        jobs = [LaunchedJob(shape, _first_report(shape)) for shape in shapes]
        for job in jobs:
            self._tasks.add(asyncio.create_task(self._serve(job), name=f"launcher of {job.shape.name}"))
        return jobs

    async def until_running(self, jobs: Sequence[LaunchedJob], seconds: float) -> None:
        """Wait until all of them run.

        Raises:
            TooLate: Some do not.
        """
        deadline = time.monotonic() + seconds
        while not all(job.running for job in jobs):
            self.check()
            if time.monotonic() > deadline:
                raise TooLate(f"{sum(not job.running for job in jobs)} of {len(jobs)} jobs do not run")
            await asyncio.sleep(_POLL_SECONDS)

    async def report_end(self, job: LaunchedJob) -> None:
        """Report that the job's run and the job have ended."""
        await self._report(job, running=False, exit_code=_STOPPED, result="terminated")

    def check(self) -> None:
        """Raise what has ended a launcher, if one has ended."""
        for task in self._tasks:
            if task.done():
                task.result()
                raise AssertionError(f"{task.get_name()} has ended")

    async def _serve(self, job: LaunchedJob) -> None:
        async with self._session.post(
            f"{self._url}/v1/launchers/stream", json=_hello(job), headers=self._headers
        ) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                order = msgspec.json.decode(line, type=LauncherOrder)
                if order.type == "order":
                    await self._follow(job, msgspec.structs.replace(order, at=time.monotonic()))

    async def _follow(self, job: LaunchedJob, order: LauncherOrder) -> None:
        job.orders.append(order)
        if order.phase == "Stopping" and self._acknowledges:
            await self._acknowledge(job, order)
        elif order.order == "run":
            await self._report(job, run=order.run, running=True, applied=order.generation)
        elif job.running:
            await self._report(job, running=False, exit_code=_STOPPED)

    async def _acknowledge(self, job: LaunchedJob, order: LauncherOrder) -> None:
        report = {"process": f"{job.shape.name}-0", "host": job.shape.hosts[0], "rank": 0, "step": 1}
        answer = {**report, "run": order.run, "generation": order.generation, "kind": "left"}
        await self._post("/v1/processes/report", answer, {"Authorization": f"Bearer {job.token}"})

    async def _report(self, job: LaunchedJob, **changes: Any) -> None:
        job.report = {**job.report, **changes, "revision": job.report["revision"] + 1}
        report = {**job.report, "job": job.shape.name, "instance": _INSTANCE}
        await self._post("/v1/launchers/report", report, self._headers)

    async def _post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        async with self._session.post(self._url + path, json=body, headers=headers) as answer:
            answer.raise_for_status()

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise AssertionError("use it as a context")
        return self._http


def _first_report(shape: JobShape) -> dict[str, Any]:
    none = {"run": 0, "running": False, "exit_code": None, "restarts": 0, "applied": 0, "result": None}
    return {"revision": 1, "hosts": list(shape.hosts), **none}


def _hello(job: LaunchedJob) -> Mapping[str, Any]:
    count = len(job.shape.hosts)
    return {
        "job": job.shape.name,
        "instance": _INSTANCE,
        "framework": job.shape.framework,
        "min_workers": job.shape.min_workers,
        "max_workers": count,
        "requested_workers": count,
        "report": job.report,
    }
