"""Sends each connected elastic agent of torchrun jobs the present rounds. Nothing here is stored."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from servicekit.bulkhead import Bulkhead
from supervisor.decide.situation import NO_MEMBERS, Member, Members
from supervisor.domain.agreement import Round
from supervisor.domain.ids import Host, JobId, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.fanout.lines import LineResponse, line
from supervisor.fanout.processes import REPLACED, ByJob

GONE_SECONDS = 0.3
"""A member whose stream has ended is gone after this time: it may only have lost its connection."""

SILENT_SECONDS = 3.0
"""Members report each second. One that has not for this time is frozen, and gone although its stream is open."""

_STALL_SECONDS = 0.25
"""A timer that fires so late shows that this process stood still: then reports may wait to be read."""


@dataclass(frozen=True, slots=True)
class MemberId:
    """The identity of a member, as the wire has it."""

    job: JobId
    run: int
    host: Host
    member: str


@dataclass(slots=True)
class _MemberConnection:
    id: MemberId
    state: Member
    stream: LineResponse | None = None
    sent: Mapping[str, Any] | None = None
    revision: int = 0
    heard_at: float = 0.0
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """Holds what is the same in the lines to all members of a run. Rounds are encoded once for all of them.

    Attributes:
        generation: Of the present decision.
        reason: Of the same.
        present: Its round, if it is one of that run.
        present_line: The same as JSON.
        following: The round that may follow.
        following_line: The same as JSON, with the epoch of its attempt.
        is_over: A member that is in no round has nothing to wait for.
    """

    generation: int
    reason: str
    present: Round | None
    present_line: msgspec.Raw | None
    following: Round | None
    following_line: msgspec.Raw | None
    is_over: bool


@dataclass(slots=True)
class _JobMembers:
    run: int
    told: _Told | None = None
    """All members with a stream have been told this."""
    connections: dict[Host, _MemberConnection] = field(default_factory=dict)
    have_ended: bool = False
    """Members that have ended are gone before the others report that they have."""


class MemberStreams:
    """Holds the streams to elastic agents; each gets the present rounds of its job.

    Args:
        job: The present job of a name; None if there is none.
        on_change: Called with a job whose members have changed.
        bulkhead: Keeps what nobody foresaw with its job.
    """

    def __init__(
        self,
        job: Callable[[JobName], SupervisedJob | None],
        on_change: Callable[[JobName], None],
        bulkhead: Bulkhead,
    ) -> None:
        self._bulkhead = bulkhead
        self._job = job
        self._on_change = on_change
        self._jobs: ByJob[_JobMembers] = ByJob()

    def attach(self, sender: MemberId, state: Member, stream: LineResponse) -> None:
        """Adds a member and sends it its line. It replaces another member of its host."""
        job = self._jobs.get(sender.job)
        if job is None or job.run < sender.run:
            job = self._jobs[sender.job] = _JobMembers(sender.run)
        before = job.connections.get(sender.host)
        if before is not None:
            self._end(before, "replaced by a newer stream")
        connection = job.connections[sender.host] = _MemberConnection(sender, state, stream)
        job.have_ended |= state.ended
        if before is not None and before.id == sender:
            connection.revision = before.revision
        self._expire(connection, SILENT_SECONDS)
        self._on_change(sender.job.name)
        self._send(connection)

    def detach(self, sender: MemberId, stream: LineResponse) -> None:
        """Records that a stream has ended. Its member is gone if it does not return soon."""
        connection = self._found(sender)
        if connection is not None and connection.stream is stream:
            connection.stream = None
            self._expire(connection, GONE_SECONDS)

    def report(self, sender: MemberId, state: Member, revision: int) -> bool:
        """Records the state of a member; returns False if it has no stream, or if its newer report has come already."""
        job, connection = self._jobs.get(sender.job), self._found(sender)
        if job is None or connection is None or connection.stream is None or revision <= connection.revision:
            return False
        connection.revision = revision
        self._expire(connection, SILENT_SECONDS)
        if state != connection.state:
            connection.state = state
            job.have_ended |= state.ended
            self._on_change(sender.job.name)
            self.refresh([sender.job.name])
        return True

    def since(self, sender: MemberId) -> float | None:
        """When this member connected first (Unix seconds); None if it is new."""
        connection = self._found(sender)
        return None if connection is None else connection.state.since

    def of(self, known: JobId, run: int) -> Members:
        """The members of a run."""
        job = self._jobs.get(known)
        if job is None or job.run != run or not job.connections:
            return NO_MEMBERS
        return Members({host: each.state for host, each in job.connections.items()}, job.have_ended)

    def refresh(self, names: Iterable[JobName]) -> None:
        """Sends the members of these jobs their lines if the lines have changed. It ends streams of an earlier job."""
        for name in names:
            with self._bulkhead.guard("rounds", name):
                for known in self._jobs.named(name):
                    self._tell(known)

    def count(self, known: JobId) -> int:
        """The number of members of a job."""
        return len(self._connections(known))

    def forget_others(self, jobs: Collection[JobId]) -> None:
        """Forgets all other jobs without a stream."""
        for known in self._jobs:
            if known not in jobs and not self._connections(known):
                self._jobs.pop(known)

    async def heartbeat(self, seconds: float) -> None:
        """Sends the heartbeats that are due."""
        for known in self._jobs:
            for connection in self._connections(known):
                if connection.stream is not None:
                    connection.stream.heartbeat(seconds)

    def finish(self, reason: str) -> None:
        """Ends every stream with a goodbye."""
        for known in self._jobs:
            self._end_all(known, reason)

    def _end_all(self, known: JobId, reason: str) -> None:
        for connection in self._connections(known):
            self._end(connection, reason)
        self._jobs.pop(known)

    def _connections(self, known: JobId) -> list[_MemberConnection]:
        job = self._jobs.get(known)
        return [] if job is None else list(job.connections.values())

    def _found(self, sender: MemberId) -> _MemberConnection | None:
        job = self._jobs.get(sender.job)
        connection = None if job is None else job.connections.get(sender.host)
        return connection if connection is not None and connection.id == sender else None

    def _expire(self, connection: _MemberConnection, seconds: float) -> None:
        """Forgets a member after some seconds, unless it reports before."""
        if connection.timer is not None:
            connection.timer.cancel()
        loop = asyncio.get_running_loop()
        connection.timer = loop.call_later(seconds, self._gone, connection, loop.time() + seconds)

    def _gone(self, connection: _MemberConnection, due: float) -> None:
        if asyncio.get_running_loop().time() > due + _STALL_SECONDS:
            self._expire(connection, GONE_SECONDS)
            return
        job = self._jobs.get(connection.id.job)
        if job is not None and job.connections.get(connection.id.host) is connection:
            del job.connections[connection.id.host]
            # A frozen member finds its stream ended when it goes on, and connects again.
            self._end(connection, "silent")
            self._on_change(connection.id.job.name)

    def _end(self, connection: _MemberConnection, reason: str) -> None:
        if connection.timer is not None:
            connection.timer.cancel()
        if connection.stream is not None:
            connection.stream.finish(reason)
            connection.stream = None

    def _tell(self, known: JobId) -> None:
        """Sends all members of a job their lines, if what they say is new: most reports of thousands change nothing."""
        members, job = self._jobs.get(known), self._job(known.name)
        if members is None or job is None:
            return
        told = _told(job, self.of(known, members.run), members.run)
        if job.id == known and told == members.told:
            return
        for connection in self._connections(known):
            self._send(connection, told)
        members.told = told  # not before: what failed on the way is tried again with the next report

    def _send(self, connection: _MemberConnection, told: _Told | None = None) -> None:
        """Sends a member its line if it is another one. `told` is that of its job's run."""
        job = self._job(connection.id.job.name)
        if job is None or connection.stream is None:
            return
        if job.id != connection.id.job:
            self._end_all(connection.id.job, REPLACED)
            return
        run, members = connection.id.run, self._jobs.get(job.id)
        if told is None or members is None or members.run != run:
            told = _told(job, self.of(job.id, run), run)
        message = _message(job, told, connection.id)
        if message != connection.sent:
            connection.sent = message
            connection.stream.push(line(message))


def _told(job: SupervisedJob, members: Members, run: int) -> _Told:
    decision, agreement = job.decision, job.decision.agreement
    present = decision.round if decision.round is not None and decision.round.run == run else None
    following = None if agreement is None or agreement.run != run else agreement.following
    epoch = 0 if agreement is None else agreement.epoch
    is_over = job.over
    if not is_over and present is not None and members.have_ended:
        training = frozenset(present.members)
        is_over = all(each.ended for each in members.by_host.values() if each.member in training)
    return _Told(
        generation=decision.generation,
        reason=decision.reason,
        present=present,
        present_line=None if present is None else _encoded(_round(present, members)),
        following=following,
        following_line=None if following is None else _encoded({**_round(following, members), "epoch": epoch}),
        is_over=is_over,
    )


def _encoded(fields: Mapping[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(fields))


def _message(job: SupervisedJob, told: _Told, to: MemberId) -> Mapping[str, Any]:
    """Returns the line to one member."""
    present, following = told.present, told.following
    is_part = present is not None and to.member in present.members
    return {
        "type": "rendezvous",
        "job": job.name,
        "run": to.run,
        "generation": told.generation,
        "reason": told.reason,
        "wanted": 0 if present is None else present.number,
        "round": told.present_line if is_part else None,
        "following": told.following_line if following is not None and to.member in following.members else None,
        "starts": present is not None and not is_part and to.host in present.starting,
        # A member that is in no round has nothing to wait for once all that train have ended, or the job has.
        "release": 0 if not is_part and told.is_over else None,
    }


def _round(present: Round, members: Members) -> Mapping[str, Any]:
    """Encodes a round, with the addresses of the members that are connected."""
    first = members.by_host.get(present.hosts[0])
    # An agent that starts new processes opens a store for them, whatever it has opened before.
    opened = () if first is None else (first.store, first.following_store if present.in_process else None)
    store = next((each for each in opened if each is not None and each.round == present.number), None)
    found = []
    for name, host in zip(present.members, present.hosts, strict=True):
        member = members.by_host.get(host)
        if member is not None and member.member != name:
            member = None
        found.append(
            {
                "member": name,
                "host": host,
                "address": "" if member is None else member.address,
                "processes": 1 if member is None else member.processes,
            }
        )
    return {
        "number": present.number,
        "in_process": present.in_process,
        "members": found,
        "store": None if store is None else {"address": store.address, "port": store.port},
    }
