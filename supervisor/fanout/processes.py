"""Sends each connected training process its latest directive, on a stream of its own or through a relay."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from servicekit.bulkhead import Bulkhead
from supervisor.decide.directives import DirectiveKey, JobDirectives
from supervisor.decide.ranks import RankCounts
from supervisor.decide.situation import RankZero
from supervisor.domain.ids import Host, JobId, JobName
from supervisor.domain.order import ProcessDirective, ProcessDirectiveKind, Worker
from supervisor.fanout.lines import LineResponse, line

V = TypeVar("V")

COALESCE_SECONDS = 0.05
"""Directives that are not urgent are delayed by this time and sent together. Sending every notice of a group to 2,000
streams with TLS took 755 ms at p99 one by one, and 137 ms when coalesced."""

_HEARTBEATS_AT_ONCE = 100
"""A write with TLS takes about 20 µs: 10,000 writes without a pause blocked the loop for a fifth of a second."""

_SOON_SECONDS = 1.0
"""A LEAVE that takes effect later than this is not urgent: every notice of a group causes one."""

MAX_STREAMS = 40_000
"""The most processes with a stream of one job: 5,000 hosts with 8 processes each."""

REPLACED = "another job has this name now"
"""The goodbye on the streams of an earlier job. Whatever still holds its token is refused from then on."""

Render = Callable[[JobName], JobDirectives | None]
"""Computes the present directives of the job with a name; None if there is none."""

OnSent = Callable[[JobName, Collection[ProcessDirective]], None]
"""Called with the directives that were just sent to connected processes of a job."""


@dataclass(eq=False, slots=True)
class ByJob(Generic[V]):
    """Maps jobs to values, and finds all registrations of one name.

    Nearly every name has one registration. There are several while the processes of an earlier job still have streams.
    """

    _names: dict[JobName, dict[JobId, V]] = field(init=False, default_factory=dict)

    def __iter__(self) -> Iterator[JobId]:
        return iter([job for jobs in self._names.values() for job in jobs])

    def __setitem__(self, job: JobId, value: V) -> None:
        self._names.setdefault(job.name, {})[job] = value

    def get(self, job: JobId) -> V | None:
        """Returns the value of a job; None if it has none."""
        jobs = self._names.get(job.name)
        return None if jobs is None else jobs.get(job)

    def pop(self, job: JobId) -> V | None:
        """Removes and returns the value of a job; None if it has none."""
        jobs = self._names.get(job.name, {})
        value = jobs.pop(job, None)
        if not jobs:
            self._names.pop(job.name, None)
        return value

    def named(self, name: JobName) -> Collection[JobId]:
        """Returns the registrations of a name that have a value."""
        jobs = self._names.get(name)
        return list(jobs) if jobs else ()

    def values(self) -> Iterator[V]:
        """Returns all values."""
        return iter([value for jobs in self._names.values() for value in jobs.values()])


@dataclass(eq=False, slots=True)
class RelayStream:
    """The open stream of a relay. The relay passes the lines on to all training processes of a pod or machine.

    A line of such a stream names the processes that it is for, so the same directive is sent once to all of them.

    Attributes:
        lines: The response.
        streams: The streams of the processes by their names, in the order in which they joined.
    """

    lines: LineResponse
    streams: dict[str, "RelayedStream"] = field(init=False, default_factory=dict)
    _unsent: dict[str, bytes] = field(init=False, default_factory=dict)

    def push(self, process: str, data: bytes) -> None:
        """Queues a line for a process. All queued lines are sent together after the present callback of the event loop.

        Only the last line of a process is sent: each is the whole present state.
        """
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent[process] = data

    def _flush(self) -> None:
        processes: dict[bytes, list[str]] = {}
        for process, data in self._unsent.items():
            processes.setdefault(data, []).append(process)
        self._unsent.clear()
        for data, names in processes.items():
            self.lines.push(line({"type": "relayed", "processes": names, "line": msgspec.Raw(data.rstrip())}))


@dataclass(frozen=True, eq=False, slots=True)
class RelayedStream:
    """The part of a relay's stream that belongs to one process."""

    relay: RelayStream
    worker: Worker

    def push(self, data: bytes) -> None:
        """Sends a line."""
        self.relay.push(self.worker.process, data)

    def finish(self, reason: str) -> None:
        """Ends the part of this process with a goodbye."""
        self.relay.push(self.worker.process, line({"type": "goodbye", "reason": reason}))


ProcessStream = LineResponse | RelayedStream
"""Where the lines of one process go: its own response, or its part of one that a relay holds."""


@dataclass(slots=True)
class _ProcessConnection:
    worker: Worker
    stream: ProcessStream
    wire: LineResponse
    """The response that carries the lines."""
    revision: int | None
    since: float
    attempt: int | None = None
    sent: ProcessDirective | None = None
    answered: int = 0
    """The generation of the STOP that it has answered last."""


@dataclass(eq=False, slots=True)
class _DirectiveLines:
    """The directives of a job's processes at one moment; processes with the same directive share one encoded line.

    Attributes:
        directives: Computes them.
        now: The moment.
        sent: The directives that were sent to at least one process, by identity: comparing 2,000 by value would be
            slow.
    """

    directives: JobDirectives
    now: float
    sent: dict[int, ProcessDirective] = field(init=False, default_factory=dict)
    _encoded: dict[DirectiveKey, tuple[ProcessDirective, bytes]] = field(init=False, default_factory=dict)

    def to(self, worker: Worker) -> tuple[ProcessDirective, bytes]:
        """Returns the directive of a process, and its encoded line."""
        key = self.directives.key(worker)
        entry = self._encoded.get(key)
        if entry is None:
            directive = self.directives.directive(worker)
            entry = self._encoded[key] = (directive, line(message(directive, worker.job.name, self.now)))
        return entry

    def send(self, connection: _ProcessConnection) -> None:
        """Sends a process its directive, unless it was the last one sent."""
        directive, data = self.to(connection.worker)
        if directive != connection.sent:
            connection.sent = directive
            connection.stream.push(data)
            self.sent[id(directive)] = directive

    def is_urgent(self, connection: _ProcessConnection) -> bool:
        """Whether a process has to get its directive at once."""
        directive, _ = self.to(connection.worker)
        known = None if connection.sent is None else connection.sent.agreement
        if directive.agreement != known:  # Each round of an agreement counts, and its step comes nearer.
            return True
        if directive.kind is ProcessDirectiveKind.RUN or directive == connection.sent:
            return False
        return directive.act_at is None or directive.act_at - self.now < _SOON_SECONDS


@dataclass(slots=True)
class _JobProcesses:
    connections: dict[str, _ProcessConnection] = field(default_factory=dict)
    flush: asyncio.TimerHandle | None = None
    hosts: frozenset[Host] | None = None
    """The hosts of the connections; None until they are needed. Reading the status page by page needs them often."""
    unanswered: tuple[int, set[str]] | None = None
    """The processes that have not answered the STOP of a generation, so that not each answer looks at all of them."""

    @property
    def wires(self) -> Collection[LineResponse]:
        """The responses that carry the lines. The response of a relay is included once."""
        return {connection.wire for connection in self.connections.values()}


class Processes:
    """Holds the streams to training processes; each gets the latest directive only.

    Args:
        render: Called when directives are sent, so that delayed ones are not stale.
        now: Unix seconds.
        bulkhead: Keeps what nobody foresaw with its job.
        on_rank_zero: Called with the job when a rank 0 may have appeared or gone.
        on_sent: Called when directives have been sent because of a change.
    """

    def __init__(
        self,
        render: Render,
        now: Callable[[], float],
        bulkhead: Bulkhead,
        on_rank_zero: Callable[[JobName], None],
        on_sent: OnSent = lambda _job, _directives: None,
    ) -> None:
        self._render = render
        self._now = now
        self._bulkhead = bulkhead
        self._on_rank_zero = on_rank_zero
        self._on_sent = on_sent
        self._jobs: ByJob[_JobProcesses] = ByJob()
        self._rank_zeros: dict[JobId, RankZero] = {}
        self._started = now()

    def attach(
        self, worker: Worker, stream: ProcessStream, revision: int | None = None, attempt: int | None = None
    ) -> bool:
        """Adds a process and sends it its directive; a second stream of one process replaces the first.

        Returns False, and ends `stream`, if the process has a stream for a later hello of its own: it may have given up
        a relay that was slow, and the relay sends its hello nevertheless. To take its stream away would leave it
        without one until it has connected once more.

        Args:
            worker: The process.
            stream: Where its lines go.
            revision: That of what its hello says, None if it numbers nothing.
            attempt: The number of its hello, None if it numbers none.
        """
        job = self._jobs.get(worker.job)
        if job is None:
            job = self._jobs[worker.job] = _JobProcesses()
        replaced = job.connections.get(worker.process)
        if replaced is not None and attempt is not None and attempt < (replaced.attempt or 0):
            stream.finish("a newer stream of this process is open")
            return False
        wire = stream.relay.lines if isinstance(stream, RelayedStream) else stream
        if replaced is not None and replaced.wire is not wire:
            replaced.stream.finish("replaced by a newer stream")
        connection = _ProcessConnection(worker, stream, wire, revision, self._now(), attempt)
        job.connections[worker.process] = connection
        if replaced is not None:
            connection.since, connection.answered = replaced.since, replaced.answered
        job.hosts = None
        if worker.rank == 0 or (replaced is not None and replaced.worker.rank == 0):
            self._on_rank_zero(worker.job.name)
        self._send(connection)
        return True

    def detach(self, worker: Worker, stream: ProcessStream) -> None:
        """Removes a stream that has ended."""
        job = self._jobs.get(worker.job)
        connection = None if job is None else job.connections.get(worker.process)
        if job is None or connection is None or connection.stream is not stream:
            return
        del job.connections[worker.process]
        job.hosts = None
        if job.unanswered is not None:
            job.unanswered[1].discard(worker.process)
        if not job.connections:
            self._forget(worker.job)
        if connection.worker.rank == 0:
            self._on_rank_zero(worker.job.name)

    def update(self, worker: Worker, revision: int | None) -> bool:
        """Changes the rank of a process to the one that it reports.

        Returns False, and changes nothing, if a newer report or hello of the process has come: reports are posted side
        by side and are repeated, so an older one may come last.
        """
        job = self._jobs.get(worker.job)
        connection = None if job is None else job.connections.get(worker.process)
        if connection is None:
            return True
        if revision is not None:
            if connection.revision is not None and revision < connection.revision:
                return False
            connection.revision = revision
        before = connection.worker
        if before.rank != worker.rank:
            connection.worker = replace(before, rank=worker.rank)
            if 0 in (before.rank, worker.rank):
                self._on_rank_zero(before.job.name)
            self._send(connection)
        return True

    def rank_zero(self, job: JobId, run: int) -> RankZero:
        """Returns whether a process of `run` is rank 0, and since when.

        One that never connected is missing since this supervisor started.
        """
        present = self._present(job, run)
        connected = any(each.worker.rank == 0 for each in present)
        known = self._rank_zeros.get(job)
        if known is None or known.connected != connected:
            since = self._started if known is None and not connected else self._now()
            known = self._rank_zeros[job] = RankZero(connected, since)
        if not present or any(each.worker.rank is not None for each in present):
            return known
        return replace(known, unranked_since=max(each.since for each in present))

    def answers_for_all(self, worker: Worker, generation: int) -> bool:
        """Records that a process has answered the STOP of a generation.

        Returns whether all connected processes of its run have, and none of them knows its rank: then nobody is rank 0,
        and the last answer is that of the job.
        """
        job = self._jobs.get(worker.job)
        connection = None if job is None else job.connections.get(worker.process)
        if job is None or connection is None:
            return False
        connection.answered = max(connection.answered, generation)
        if job.unanswered is None or job.unanswered[0] != generation:
            late = {each.worker.process for each in self._present(worker.job, worker.run) if each.answered < generation}
            job.unanswered = generation, late
        job.unanswered[1].discard(worker.process)
        return not job.unanswered[1] and all(
            each.worker.rank is None and each.answered >= generation for each in self._present(worker.job, worker.run)
        )

    def rank_counts(self, job: JobId, run: int) -> RankCounts:
        """Returns how many processes of a run are connected, know their rank, and are rank 0."""
        ranks = [each.worker.rank for each in self._present(job, run)]
        return RankCounts(len(ranks), sum(rank is not None for rank in ranks), ranks.count(0))

    def full(self, job: JobId) -> bool:
        """Whether a job has the maximum number of processes."""
        known = self._jobs.get(job)
        return known is not None and len(known.connections) >= MAX_STREAMS

    @property
    def count(self) -> int:
        """The number of streams. The stream of a relay counts once."""
        return sum(len(job.wires) for job in self._jobs.values())

    def workers(self, job: JobId) -> list[Worker]:
        """Returns the connected processes of a job."""
        known = self._jobs.get(job)
        return [] if known is None else [connection.worker for connection in known.connections.values()]

    def hosts(self, job: JobId) -> frozenset[Host]:
        """Returns the hosts of a job's connected processes."""
        known = self._jobs.get(job)
        if known is None:
            return frozenset()
        if known.hosts is None:
            known.hosts = frozenset(connection.worker.host for connection in known.connections.values())
        return known.hosts

    def refresh(self, names: Iterable[JobName]) -> None:
        """Sends changed directives: urgent ones at once, others together with further changes after 50 ms.

        The streams of an earlier job of a name end.
        """
        for name in names:
            for known in self._jobs.named(name):
                self._flush(known)

    def forget_others(self, jobs: Collection[JobId]) -> None:
        """Forgets rank 0 of all other jobs."""
        self._rank_zeros = {job: known for job, known in self._rank_zeros.items() if job in jobs}

    async def heartbeat(self, seconds: float) -> None:
        """Sends the heartbeats that are due, with pauses for urgent directives."""
        streams = [stream for job in self._jobs.values() for stream in job.wires]
        for turn, stream in enumerate(streams, 1):
            stream.heartbeat(seconds)
            if turn % _HEARTBEATS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def finish(self, reason: str) -> None:
        """Ends every stream with a goodbye."""
        for known in self._jobs:
            job = self._forget(known)
            for stream in () if job is None else job.wires:
                stream.finish(reason)

    def _present(self, job: JobId, run: int) -> list[_ProcessConnection]:
        known = self._jobs.get(job)
        return [] if known is None else [each for each in known.connections.values() if each.worker.run == run]

    def _forget(self, known: JobId) -> _JobProcesses | None:
        job = self._jobs.pop(known)
        if job is not None and job.flush is not None:
            job.flush.cancel()
        return job

    def _send(self, connection: _ProcessConnection) -> None:
        lines = self._lines(connection.worker.job)
        if lines is not None:
            lines.send(connection)

    def _lines(self, known: JobId) -> _DirectiveLines | None:
        """Returns the lines to the processes of a job; None if it is unknown.

        If a later job has its name, its streams end.
        """
        directives = self._render(known.name)
        if directives is None:
            return None
        if directives.job.id == known:
            return _DirectiveLines(directives, self._now())
        job = self._forget(known)
        for connection in job.connections.values() if job is not None else ():
            connection.stream.finish(REPLACED)  # Not the wire: a relay may carry processes of the later job.
        return None

    def _flush_in(self, seconds: float, known: JobId) -> None:
        job = self._jobs.get(known)
        if job is not None and job.flush is None:
            job.flush = asyncio.get_running_loop().call_later(seconds, partial(self._flush, known, is_due=True))

    def _flush(self, known: JobId, *, is_due: bool = False) -> None:
        """Sends the processes of a job their directives if one is urgent or the timer is due, or starts the timer."""
        with self._bulkhead.guard("directives", known.name) as attempt:
            job = self._jobs.get(known)
            if job is None:
                return
            if is_due:
                job.flush = None
            lines = self._lines(known)
            if lines is None:
                return
            if not (is_due or any(lines.is_urgent(connection) for connection in job.connections.values())):
                self._flush_in(COALESCE_SECONDS, known)
                return
            if job.flush is not None:
                job.flush.cancel()
                job.flush = None
            for connection in job.connections.values():
                lines.send(connection)
            if lines.sent:
                self._on_sent(known.name, lines.sent.values())
        if attempt.retry_in is not None:
            self._flush_in(attempt.retry_in, known)


def message(directive: ProcessDirective, job: JobName, now: float) -> Mapping[str, Any]:
    """Encodes a directive for the wire: instants become seconds from now."""
    notice, agreement = directive.notice, directive.agreement
    seconds_left = None if notice is None or notice.deadline is None else max(0.0, notice.deadline - now)
    return {
        "type": "directive",
        "directive": directive.kind,
        "act_in": 0.0 if directive.act_at is None else max(0.0, directive.act_at - now),
        "seconds_left": seconds_left,
        "job": job,
        "run": directive.run,
        "generation": directive.generation,
        "reason": directive.reason,
        "notice": None
        if notice is None
        else {
            "id": f"{notice.id}#{notice.episode}",
            "source": notice.source,
            "host": directive.host or notice.subject.name,
            "seconds_left": seconds_left,
            "own": directive.is_own,
        },
        "max_wait": directive.max_wait_seconds or None,
        "release": directive.release,
        "agreement": None
        if agreement is None
        else {
            "epoch": agreement.epoch,
            "purpose": agreement.purpose,
            "step": agreement.step,
            "committed": agreement.committed,
        },
    }
