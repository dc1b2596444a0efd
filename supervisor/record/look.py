"""What is so now, gathered from everywhere for those who show it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from servicekit.clock import Clock
from supervisor.control.facts import Facts
from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.placement import Placement
from supervisor.fanout.processes import Processes
from supervisor.presence import Agents
from supervisor.record.groups import Groups
from supervisor.record.phases import Phases
from supervisor.record.values import LeaderView
from supervisor.record.view import JobSeen, Seen
from supervisor.refusals import Refusals
from supervisor.store.interface import Store
from supervisor.unconfirmed import Unconfirmed


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookout:
    """Where to look; `name` is this supervisor's pod, `placements` where the hosts of a job are."""

    store: Store
    facts: Facts
    placements: Callable[[JobName], Mapping[Host, Placement] | None]
    agents: Agents
    unconfirmed: Unconfirmed
    processes: Processes
    groups: Groups
    phases: Phases
    refusals: Refusals
    policy: Policy
    name: str
    may_act: Callable[[], bool]
    clock: Clock
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_since", self.clock.now())

    @property
    def version(self) -> tuple[int, ...]:
        """Another one whenever something was stored, announced or said by an agent; not for each stream that begins."""
        return self.store.snapshot().version, self.agents.version, self.unconfirmed.version

    def look(self) -> Seen:
        """Everything at this moment; what it holds does not change afterwards."""
        snapshot, agents, now = self.store.snapshot(), dict(self.agents.all()), self.clock.now()
        silent = {node: self.agents.silent_since(node) for node, agent in agents.items() if not agent.connected}
        return Seen(
            now=now,
            policy=self.policy,
            leader=LeaderView(name=self.name, acts=self.may_act(), serving_seconds=now - self._since),
            jobs=tuple(self._job(job) for job in snapshot.jobs.values()),
            notices=tuple(snapshot.notices.values()),
            unconfirmed=tuple(self.unconfirmed.all()),
            groups=self.groups.all(),
            agents=agents,
            silent={node: since for node, since in silent.items() if since is not None},
            refused=dict(self.refusals.counts()),
        )

    def _job(self, job: SupervisedJob) -> JobSeen:
        return JobSeen(
            job=job,
            noticed=self.facts.shown(job.name),
            places=self.placements(job.name),
            streams=self.processes.hosts(job.name),
            since=self.phases.since(job),
        )
