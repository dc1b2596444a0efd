"""The values that the status is computed from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.decide.explanation import NOTHING, Missing
from supervisor.decide.policy import Policy
from supervisor.decide.ranks import NO_RANKS, RankCounts, Ranks
from supervisor.domain.capacity import Machine, Placement
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.ingest.agent_registry import AgentState
from supervisor.observability.groups import Group
from supervisor.observability.views import LeaderView
from supervisor.refusals import Code, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job with the facts that only the streams and the cluster know.

    `noticed` maps each noticed host to its most urgent notice. `placements` is None if the hosts are nodes. `streams`
    are the hosts with a connected process. `since` is when the phase began. `missing` returns what a waiting job lacks,
    `ranks` what its processes say about agreed steps, and `rank_counts` how many of them know their rank. `faults` has
    a sentence for each part of the supervisor that fails on this job.
    """

    job: SupervisedJob
    noticed: Mapping[Host, ReclaimNotice]
    placements: Mapping[Host, Placement] | None
    streams: frozenset[Host]
    since: float | None
    missing: Callable[[], Missing] = lambda: NOTHING
    ranks: Callable[[], Ranks] = lambda: NO_RANKS
    rank_counts: Callable[[], RankCounts] = RankCounts
    faults: tuple[str, ...] = ()

    def node(self, host: Host) -> Host:
        """The node of a host."""
        placement = None if self.placements is None else self.placements.get(host)
        return host if placement is None else placement.node


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSnapshot:
    """The state at `now` (Unix seconds). `gpus` are those of each worker of a job, where they are known.

    `silent`: since when an agent has had no stream. `heard`: when it last gave a sign of life, which is earlier.
    """

    now: float
    policy: Policy
    leader: LeaderView
    jobs: tuple[JobStatus, ...]
    notices: tuple[ReclaimNotice, ...]
    unconfirmed: tuple[ReclaimNotice, ...]
    groups: tuple[Group, ...]
    agents: Mapping[Host, AgentState]
    silent: Mapping[Host, float]
    refused: Mapping[tuple[Wire, Code], int]
    heard: Mapping[Host, float] = field(default_factory=dict)
    machines: Mapping[Host, Machine] = field(default_factory=dict)
    sharing: Mapping[Host, Sequence[Host]] = field(default_factory=dict)
    gpus: Mapping[JobName, float] = field(default_factory=dict)
