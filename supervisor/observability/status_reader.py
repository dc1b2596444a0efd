"""Collects what the status shows from the components of the leader."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version

from supervisor.domain.job import SupervisedJob
from supervisor.observability.groups import Groups
from supervisor.observability.hooks import LiveState
from supervisor.observability.phase_tracker import PhaseTracker
from supervisor.observability.snapshot import JobStatus, StatusSnapshot
from supervisor.observability.transitions import NoticedHosts
from supervisor.observability.views import LeaderView
from supervisor.refusals import Refusals

VERSION = version("elastic-job-supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReader:
    """Reads the status. `shown`: a job's noticed hosts as its processes know them; `name`: this supervisor's pod."""

    live: LiveState
    shown: NoticedHosts
    groups: Groups
    phases: PhaseTracker
    refusals: Refusals
    name: str
    may_act: Callable[[], bool]
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_since", self.live.now())

    @property
    def version(self) -> tuple[int, ...]:
        """Changes with every stored change, announcement and agent report, but not with every new stream."""
        return self.live.snapshot().version, self.live.agents.version, self.live.unconfirmed.version

    def snapshot(self) -> StatusSnapshot:
        """The state at this moment, as values that do not change afterwards."""
        snapshot, agents, now = self.live.snapshot(), dict(self.live.agents.all()), self.live.now()
        silent = {node: self.live.agents.silent_since(node) for node, agent in agents.items() if not agent.connected}
        return StatusSnapshot(
            now=now,
            policy=self.live.policy,
            leader=LeaderView(name=self.name, acts=self.may_act(), serving_seconds=now - self._since, version=VERSION),
            jobs=tuple(self._job(job) for job in snapshot.jobs.values()),
            notices=tuple(snapshot.notices.values()),
            unconfirmed=tuple(self.live.unconfirmed.all()),
            groups=self.groups.all(),
            agents=agents,
            silent={node: since for node, since in silent.items() if since is not None},
            sharing=self.live.agents.sharing(),
            refused=dict(self.refusals.counts()),
        )

    def _job(self, job: SupervisedJob) -> JobStatus:
        return JobStatus(
            job=job,
            noticed=self.shown(job.name),
            placements=self.live.placements(job.name),
            streams=self.live.processes.hosts(job.name),
            since=self.phases.since(job),
        )
