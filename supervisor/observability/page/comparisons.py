"""Compares jobs for the report's page in a child process, one at a time, and keeps what came out for some minutes."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NewType

import msgspec
import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.wording import duration
from supervisor.domain.ids import Instant, JobName
from supervisor.domain.worker_time import WorkerTime
from supervisor.goodput.comparison import OUT_OF_MEMORY, Comparison, RecordedJob, gathered
from supervisor.observability.record.database import RecordError
from supervisor.observability.views import CapacityView, LedgerView

KEPT_SECONDS = 300.0
MAX_KEPT = 50
LIMIT_SECONDS = 180.0
"""For one comparison: the largest take 45 s of a processor, and this has the lowest priority."""

_NICENESS = 19
_MAX_BYTES = 64 * 1024
"""Of what the child process writes: a dozen rows."""
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")

_log = structlog.get_logger()

EncodedJobs = NewType("EncodedJobs", bytes)
"""`RecordedJobs` as JSON."""


class ComparisonError(Exception):
    """There is no comparison. The message is a clause without capital and full stop."""


@dataclass(frozen=True, slots=True)
class ComparisonQuestion:
    """One job, or all of them if `job` is empty, in the last so many seconds."""

    job: JobName
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PageComparison:
    """What is known of a comparison that a viewer has asked for.

    Attributes:
        at: The end of the time that it is about (Unix seconds).
        found: What came out; None if nothing has.
        trouble: Why nothing has, a clause; empty while it is computed.
        behind: Another comparison is computed now, and this one later.
    """

    at: Instant = 0.0
    found: Comparison | None = None
    trouble: str = ""
    behind: bool = False

    @property
    def running(self) -> bool:
        return self.found is None and not self.trouble


@dataclass(frozen=True, slots=True)
class _Kept:
    comparison: PageComparison
    until: float


class PageComparisons:
    """Answers viewers with a comparison, if there is one. `run` computes what they have asked for, one at a time.

    Nobody is queued: a page that waits asks again, so those who have closed theirs cost nothing.

    Args:
        spent: Reads the ledger between two instants; raises RecordError.
        capacity: Reads which hosts were there for a job between two instants; raises RecordError.
        simulate: Compares jobs; raises ComparisonError.
        clock: The supervisor's clock.
        bulkhead: Keeps an unexpected fault in one comparison.
    """

    def __init__(
        self,
        spent: Callable[[float, float], Awaitable[LedgerView]],
        capacity: Callable[[JobName, float, float], Awaitable[CapacityView]],
        clock: Clock,
        bulkhead: Bulkhead,
        simulate: Callable[[EncodedJobs], Awaitable[bytes]] | None = None,
    ) -> None:
        self._spent = spent
        self._capacity = capacity
        self._simulate = simulate or simulate_apart
        self._clock = clock
        self._bulkhead = bulkhead
        self._kept: dict[ComparisonQuestion, _Kept] = {}
        self._asked: ComparisonQuestion | None = None
        self._has_asked = asyncio.Event()

    def of(self, question: ComparisonQuestion) -> PageComparison:
        """Returns what is known of a comparison. It begins if it is not known and no other one is computed."""
        now = self._clock.monotonic()
        self._kept = {each: kept for each, kept in self._kept.items() if kept.until > now}
        if kept := self._kept.get(question):
            return kept.comparison
        if self._asked is None:
            self._asked = question
            self._has_asked.set()
        return PageComparison(behind=self._asked != question)

    async def run(self) -> None:
        """Root task: computes what is asked for."""
        while True:
            await self._has_asked.wait()
            await self.once()

    async def once(self) -> None:
        """Computes the comparison that was asked for, if one was, and keeps it or the reason why there is none."""
        question = self._asked
        self._has_asked.clear()
        if question is None:
            return
        at = self._clock.now()
        comparison = PageComparison(at=at, trouble="a fault in it is in the supervisor's log")
        with self._bulkhead.guard("comparison", retried=False):
            try:
                found = await self._found(question, at)
                comparison = PageComparison(at=at, found=found)
            except RecordError as error:
                comparison = PageComparison(at=at, trouble=f"the record cannot be read now: {error}")
            except ComparisonError as error:
                _log.warning("page.comparison_failed", job=question.job, error=str(error))
                comparison = PageComparison(at=at, trouble=str(error))
        while len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[question] = _Kept(comparison, self._clock.monotonic() + KEPT_SECONDS)
        self._asked = None

    async def _found(self, question: ComparisonQuestion, at: Instant) -> Comparison:
        ledger = await self._spent(at - question.seconds, at)
        jobs = {each.job: WorkerTime.of([each.worker_seconds]) for each in ledger.jobs}
        names = [question.job] if question.job else sorted(jobs, key=lambda job: -jobs[job].wanted)

        async def read(job: JobName) -> RecordedJob:
            seen = await self._capacity(job, ledger.since, ledger.until)
            return RecordedJob.of(seen, jobs.get(job, WorkerTime({})))

        given = EncodedJobs(msgspec.json.encode(await gathered(names, read)))
        written = await self._simulate(given)
        try:
            return msgspec.json.decode(written, type=Comparison)
        except msgspec.MsgspecError as error:
            raise ComparisonError("the process that simulates has written something else") from error


async def simulate_apart(given: EncodedJobs) -> bytes:
    """Compares jobs in a child process of the lowest priority, which ends within a limit and with this task.

    Raises:
        ComparisonError: It took too long, or failed.
    """
    # uvloop only kills a process whose start is cancelled, and lets it wait to be reaped: so none is cancelled.
    starting = asyncio.create_task(_start(), name="comparison.start")
    try:
        process = await asyncio.shield(starting)
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        async with asyncio.timeout(LIMIT_SECONDS):
            written = await _answer(process, given)
            code = await process.wait()
    except TimeoutError as error:
        raise ComparisonError(f"it took more than {duration(LIMIT_SECONDS)}; choose a shorter time") from error
    finally:
        with contextlib.suppress(ComparisonError):  # It was not started, and that is said already.
            await _end(await starting)
    if code == OUT_OF_MEMORY:
        raise ComparisonError("it needs more memory than it may have; choose a shorter time")
    if code == -signal.SIGKILL:
        raise ComparisonError("the process that simulates was killed, such as for want of memory in the pod")
    if code != 0:
        raise ComparisonError(f"the process that simulates has failed with {code}; why is in the supervisor's log")
    return written


async def _start() -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # Nothing is imported from the directory in which the supervisor was started.
            "-m",
            "supervisor.goodput",
            # Not the supervisor's secrets: what the process reads, tenants have a part in.
            env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ComparisonError(f"no process can be started: {error.strerror}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends a process if it has not ended, and waits until nothing is left of it."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.communicate()


async def _answer(process: asyncio.subprocess.Process, given: EncodedJobs) -> bytes:
    """Writes to a process, and reads what it writes, to its end."""
    if process.stdin is None or process.stdout is None:
        raise ComparisonError("the process that simulates has no pipes")
    if not process.stdin.is_closing():  # It is once the process has ended, such as killed for want of memory.
        process.stdin.write(given)  # The process reads all of it first: nobody has to read from it meanwhile.
        process.stdin.close()
    try:
        await process.stdout.readexactly(_MAX_BYTES + 1)
    except asyncio.IncompleteReadError as error:  # All of it was read.
        return error.partial
    raise ComparisonError(f"the process that simulates has written more than {_MAX_BYTES} bytes")
