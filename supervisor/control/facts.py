"""What is so right now, put together from the store and the streams for those who ask about one job or process."""

from collections.abc import Mapping

from supervisor.decide.directives import JobDirectives
from supervisor.decide.notices import noticed_hosts
from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host, JobName
from supervisor.domain.notice import ReclaimNotice
from supervisor.presence import Agents
from supervisor.store.interface import Store


class Facts:
    """Durable facts only: nobody is told what a crash could take back."""

    def __init__(self, store: Store, agents: Agents, policy: Policy) -> None:
        self._store = store
        self._agents = agents
        self._policy = policy
        self._noticed: dict[Host, ReclaimNotice] = {}
        self._seen: tuple[int, int] = (0, 0)

    def noticed(self) -> Mapping[Host, ReclaimNotice]:
        """The hosts that must not be used; worked out once for each change of notices or agents."""
        snapshot = self._store.snapshot()
        seen = (snapshot.version, self._agents.version)
        if seen != self._seen:
            self._noticed = noticed_hosts(snapshot.notices.values(), self._agents.uids(), self._policy)
            self._seen = seen
        return self._noticed

    def available(self) -> frozenset[Host]:
        """The hosts that can be given to a job: known to be clear, and with no notice that still holds."""
        return self._agents.available().difference(self.noticed())

    def directives(self, name: JobName) -> JobDirectives | None:
        """What a job means for its processes now; None where it is unknown."""
        job = self._store.snapshot().jobs.get(name)
        return None if job is None else JobDirectives.of(job, self.noticed(), self._policy)
