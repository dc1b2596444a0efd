"""What is so now, gathered from everywhere for those who show it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from supervisor.domain.job import SupervisedJob
from supervisor.record.groups import Groups
from supervisor.record.meaning import Noticed
from supervisor.record.measures import Sight
from supervisor.record.phases import Phases
from supervisor.record.seen import JobSeen, Seen
from supervisor.record.values import LeaderView
from supervisor.refusals import Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookout:
    """Looks around. `shown`: a job's noticed hosts as its processes know them; `name`: this supervisor's pod."""

    sight: Sight
    shown: Noticed
    groups: Groups
    phases: Phases
    refusals: Refusals
    name: str
    may_act: Callable[[], bool]
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_since", self.sight.now())

    @property
    def version(self) -> tuple[int, ...]:
        """Another one whenever something was stored, announced or said by an agent; not for each stream that begins."""
        return self.sight.snapshot().version, self.sight.agents.version, self.sight.unconfirmed.version

    def look(self) -> Seen:
        """Everything at this moment; what it holds does not change afterwards."""
        snapshot, agents, now = self.sight.snapshot(), dict(self.sight.agents.all()), self.sight.now()
        silent = {node: self.sight.agents.silent_since(node) for node, agent in agents.items() if not agent.connected}
        return Seen(
            now=now,
            policy=self.sight.policy,
            leader=LeaderView(name=self.name, acts=self.may_act(), serving_seconds=now - self._since),
            jobs=tuple(self._job(job) for job in snapshot.jobs.values()),
            notices=tuple(snapshot.notices.values()),
            unconfirmed=tuple(self.sight.unconfirmed.all()),
            groups=self.groups.all(),
            agents=agents,
            silent={node: since for node, since in silent.items() if since is not None},
            sharing=self.sight.agents.sharing(),
            refused=dict(self.refusals.counts()),
        )

    def _job(self, job: SupervisedJob) -> JobSeen:
        return JobSeen(
            job=job,
            noticed=self.shown(job.name),
            places=self.sight.placements(job.name),
            streams=self.sight.processes.hosts(job.name),
            since=self.phases.since(job),
        )
