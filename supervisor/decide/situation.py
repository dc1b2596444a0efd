"""Defines the inputs of a decision about one job."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from supervisor.decide.grant import BY_NAME, Ranking
from supervisor.decide.policy import Policy
from supervisor.decide.ranks import NO_RANKS, Ranks
from supervisor.decide.urgency import deadline_of
from supervisor.domain.ids import Host
from supervisor.domain.job import Capability, Decision, Phase, SupervisedJob
from supervisor.domain.notice import ReclaimNotice


@dataclass(frozen=True, slots=True)
class RoundStore:
    """Where the members of `round` reach its store."""

    round: int
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRound:
    """The round that a member is in. A supervisor that started during the round takes it over."""

    number: int
    hosts: tuple[Host, ...]
    in_process: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Describes one connected elastic agent by the state that it has reported last.

    Attributes:
        member: Its id, which another agent on the same host does not share.
        since: When it connected first (Unix seconds).
        processes: How many training processes it has.
        address: Where the other members reach it.
        round: The last round that it has entered; 0 is none.
        waits: It waits for a newer round.
        failed: Its training processes have failed.
        store: The store that it holds.
        following_store: The store that it has opened for the round that may follow.
        unreachable: The newest round whose store it could not reach; 0 is none.
        ready: The newest round in which all its processes train, if they entered it in process.
        started: Its processes have started and wait to join in process.
        ended: Its processes have ended normally.
        known: The round that it is in.
    """

    member: str
    since: float
    processes: int
    address: str
    round: int = 0
    waits: bool = False
    failed: bool = False
    store: RoundStore | None = None
    following_store: RoundStore | None = None
    unreachable: int = 0
    ready: int = 0
    started: bool = False
    ended: bool = False
    known: KnownRound | None = None


@dataclass(frozen=True, slots=True)
class Members:
    """The connected members of a run by host, known only from their streams.

    A member whose stream has just ended still counts for a moment, as it may only have lost its connection.
    `have_ended`: training has ended normally, and no other round is formed.
    """

    by_host: Mapping[Host, Member] = field(default_factory=dict)
    have_ended: bool = False

    def __bool__(self) -> bool:
        return bool(self.by_host)


NO_MEMBERS = Members()


RETURN_SECONDS = 5.0
"""Elastic agents whose stream ended with a supervisor find the next one within this time."""


@dataclass(frozen=True, slots=True)
class RankZero:
    """Whether a connected process of the present run is rank 0, and since when (Unix seconds).

    For a missing rank 0, `since` is never earlier than the start of this supervisor. `unranked_since`: processes are
    connected and none of them knows its rank, since then; None if one does, or none is connected.
    """

    connected: bool
    since: float
    unranked_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """The facts that a decision about a job depends on, besides the job itself.

    Attributes:
        notices: The hosts that must not be used, each with its most urgent notice.
        ahead: The hosts with notices that are not acted on yet, see `supervisor.decide.urgency`.
        gone: Hosts whose pods are gone; the stored job may still list them for a moment.
        terminating: Hosts, excluded or noticed, whose pods were asked to terminate.
        ranking: Which hosts to keep if there are more than the job may have.
        granted: See `Grant.hosts`.
        probe: See `Grant`.
        held_up: See `Grant`.
        more: See `Grant`.
        rank_zero: Whether rank 0 is connected.
        ranks: What the connected processes say about agreed steps.
        saved_step: The step of the last checkpoint that rank 0 has saved or resumed from; None is unknown.
        members: The elastic agents of a job that torchrun runs.
        since: When this supervisor began to receive notices, at its start or after an outage of its store (Unix
            seconds). Notices that were announced before arrive a moment later.
    """

    notices: Mapping[Host, ReclaimNotice] = field(default_factory=dict)
    ahead: Mapping[Host, Sequence[ReclaimNotice]] = field(default_factory=dict)
    ranking: Ranking = BY_NAME
    gone: frozenset[Host] = frozenset()
    terminating: frozenset[Host] = frozenset()
    granted: frozenset[Host] = frozenset()
    probe: bool = False
    held_up: bool = False
    more: int = 0
    rank_zero: RankZero = RankZero(connected=True, since=0.0)
    ranks: Ranks = NO_RANKS
    saved_step: int | None = None
    members: Members = NO_MEMBERS
    since: float = 0.0


@dataclass(slots=True)
class Alarm:
    """Keeps the earliest of the instants that rules still wait for."""

    at: float | None = None


@dataclass(frozen=True)
class Situation:
    """The arguments of `plan`, with the sets that its rules need.

    `job.decision` is the decision after the transitions of this call of `plan` so far, `stored` the one before it.
    """

    job: SupervisedJob
    stored: Decision
    facts: JobFacts
    now: float
    policy: Policy
    alarm: Alarm = field(default_factory=Alarm)

    def reached(self, at: float) -> bool:
        """Whether an instant has come. If not, `plan` runs again at that instant.

        Rules compare instants with `now` in no other way, so that none can be written without naming the instant at
        which time alone changes it: until the earliest named instant, each comparison has the same result.
        """
        if self.now >= at:
            return True
        if at != math.inf:
            self.alarm.at = at if self.alarm.at is None else min(self.alarm.at, at)
        return False

    @property
    def previous(self) -> Decision:
        """The decision after the transitions so far."""
        return self.job.decision

    @cached_property
    def present(self) -> frozenset[Host]:
        """The job's hosts that its launcher still lists; if its controller makes the hosts, all hosts that it lists."""
        if self.job.spec.can(Capability.MAKES_HOSTS) and self.previous.phase is not Phase.RESUMING:
            return self.job.observed.hosts - self.facts.gone
        return self.previous.hosts & self.job.observed.hosts

    @cached_property
    def noticed(self) -> frozenset[Host]:
        """The job's present hosts that must not be used any more."""
        return self.present.intersection(self.facts.notices)

    @cached_property
    def without_member(self) -> frozenset[Host]:
        """The present hosts on which no elastic agent of torchrun is left, once the job has had some."""
        members, round_ = self.facts.members, self.previous.round
        is_known = round_ is not None and round_.run == self.job.observed.run
        if not is_known or not members or members.have_ended or not self.reached(self.facts.since + RETURN_SECONDS):
            return frozenset()
        return self.present.difference(members.by_host)

    @cached_property
    def unusable(self) -> frozenset[Host]:
        """The job's present hosts that will be gone.

        They have a notice, or are excluded and their pods are terminating: those do not return even without a notice.
        """
        return self.noticed | (self.present & self.previous.exclusions & self.facts.terminating)

    def deadline(self, hosts: frozenset[Host]) -> float | None:
        """The earliest deadline of `hosts`; None if none has a notice."""
        notices = self.facts.notices
        return min((deadline_of(notices[host], self.policy) for host in hosts & notices.keys()), default=None)

    @property
    def breaks_at(self) -> float | None:
        """When the first host that the run needs is gone; None if none has a notice.

        A host that was excluded before may go without harm.
        """
        before, launcher = self.previous, self.job.spec.launcher_host
        is_left_out = self.job.observed.applied >= before.excluded_at
        in_use = before.hosts - before.exclusions if is_left_out else before.hosts
        return self.deadline(in_use if launcher is None else in_use | {launcher})
