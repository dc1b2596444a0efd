"""What a decision about one job may look at."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.decide.notices import deadline_of
from supervisor.decide.policy import Policy
from supervisor.domain.capability import Capability
from supervisor.domain.ids import Host
from supervisor.domain.job import Decision, Phase, SupervisedJob
from supervisor.domain.notice import ReclaimNotice


@dataclass(frozen=True, slots=True)
class RankZero:
    """Whether a connected process of the present run says that it is rank 0, and since when that is so.

    `since` is Unix seconds; for a missing one it is never earlier than the start of the supervisor that says it.
    """

    connected: bool
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a decision about one job may look at, besides the job itself.

    `notices` are the hosts that must not be used; `gone` those that run nowhere any more, which what is stored of the
    job may tell a moment later; `terminating` those that were asked to end; `granted`, `probe`, `held_up` and `more`
    are the job's `Grant`. `since` is when this supervisor began to hear of notices, at its start or after an outage of
    its store (Unix seconds): what was announced before comes a moment later.
    """

    notices: Mapping[Host, ReclaimNotice] = field(default_factory=dict)
    gone: frozenset[Host] = frozenset()
    terminating: frozenset[Host] = frozenset()
    granted: frozenset[Host] = frozenset()
    probe: bool = False
    held_up: bool = False
    more: int = 0
    rank_zero: RankZero = RankZero(connected=True, since=0.0)
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Situation:
    """The arguments of `plan`, with the sets that every handler asks for.

    `job.decision` is where the present call of `plan` has come to, `stored` where it began.
    """

    job: SupervisedJob
    stored: Decision
    view: View
    now: float
    policy: Policy

    @property
    def previous(self) -> Decision:
        """Where the present call of `plan` has come to."""
        return self.job.decision

    @property
    def present(self) -> frozenset[Host]:
        """The job's hosts that the operator still lists; where an operator makes them, all that it has made."""
        if self.job.spec.can(Capability.MAKES_HOSTS) and self.previous.phase is not Phase.RESUMING:
            return self.job.observed.hosts - self.view.gone
        return self.previous.hosts & self.job.observed.hosts

    @property
    def doomed(self) -> frozenset[Host]:
        """The job's hosts that must not be used any more."""
        return self.present.intersection(self.view.notices)

    @property
    def terminating(self) -> frozenset[Host]:
        """The hosts that are left out and will not come back, though nobody announces their end any more."""
        return self.present & self.previous.exclusions & self.view.terminating

    def deadline(self, hosts: frozenset[Host]) -> float | None:
        """When the first of `hosts` is gone; None where none has a notice."""
        return min(
            (deadline_of(self.view.notices[h], self.policy) for h in hosts & self.view.notices.keys()), default=None
        )
