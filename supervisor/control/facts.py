"""Combines the present facts about jobs from the store, the streams and the cluster."""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from servicekit.own_thread import OwnThread
from supervisor.control.pool import HostPool
from supervisor.decide import urgency
from supervisor.decide.directives import JobDirectives
from supervisor.decide.explanation import Missing, NodesAtPresent, missing
from supervisor.decide.grant import Grant, Ranking
from supervisor.decide.policy import Policy
from supervisor.domain.agreement import Agreement
from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine, Placement
from supervisor.domain.ids import STANDALONE, Host, JobId, JobName, NoticeId, kind_of
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice, Subject
from supervisor.ingest.agent_registry import AgentRegistry, UnconfirmedNotices
from supervisor.store.interface import Store

Announced = Mapping[Host, ReclaimNotice] | Mapping[str, ReclaimNotice] | Mapping[str, Sequence[ReclaimNotice]]
"""Notices by the name of their node or by the uid of their pod."""

Ahead = Mapping[Host, Sequence[ReclaimNotice]]
"""The notices on each host that are not acted on yet."""

_NONE_AHEAD: Ahead = MappingProxyType({})


class ClusterFacts(Protocol):
    """The facts about jobs whose hosts are pods."""

    @property
    def node_objects(self) -> Mapping[Host, str]:
        """The uids of the cluster's Node objects."""

    @property
    def nodes_version(self) -> int:
        """A number that grows whenever one of those uids changes."""

    def machine(self, node: Host) -> Machine:
        """The machine under a node, by the node's labels."""

    def placements(self, name: JobName) -> Mapping[Host, Placement] | None:
        """The placements of a job's hosts and launcher, the same object until they change; None if hosts are nodes."""

    def granted(
        self, jobs: Sequence[SupervisedJob], noticed: Collection[Host], avoided: Collection[Host]
    ) -> Mapping[JobName, Grant]:
        """The grants of these jobs.

        Args:
            jobs: Jobs whose hosts are pods.
            noticed: The nodes that must not be used. The scheduler may still bind pods to them.
            avoided: Further nodes on which nothing starts, as they go soon.
        """


class NoCluster:
    """The `ClusterFacts` of a stand-alone supervisor."""

    nodes_version = 0
    node_objects: Mapping[Host, str] = MappingProxyType({})

    def placements(self, _name: JobName) -> None:
        """Returns None: every host is a node."""

    def granted(
        self, _jobs: Sequence[SupervisedJob], _noticed: Collection[Host], _avoided: Collection[Host]
    ) -> Mapping[JobName, Grant]:
        return {}

    def machine(self, _node: Host) -> Machine:
        """Returns an unknown machine: there are no labels."""
        return UNKNOWN_MACHINE

    def is_there(self, _notice: ReclaimNotice) -> None:
        """Returns None: only agents know whether a machine exists."""

    def node_of(self, _pod: Subject) -> None:
        """Returns None: the node of a pod is unknown."""


class NoticedSubjects:
    """The nodes and pods that a set of notices excludes, and each job's hosts among them, which it computes once.

    `ahead` has the notices that are not acted on yet.
    """

    def __init__(self, notices: urgency.NoticesByUrgency, identities: urgency.NodeIdentities, policy: Policy) -> None:
        self.nodes = urgency.noticed_hosts(notices.acted_on, identities, policy)
        self.pods = urgency.noticed_pods(notices.acted_on, policy)
        self.ahead = urgency.binding(notices.ahead, identities)
        self._policy = policy
        self._jobs: dict[JobName, tuple[Mapping[Host, Placement], Mapping[Host, ReclaimNotice]]] = {}

    def of(self, name: JobName, placements: Mapping[Host, Placement] | None) -> Mapping[Host, ReclaimNotice]:
        """The noticed hosts of a job, each with its most urgent notice; if hosts are nodes, those of all jobs."""
        if placements is None or not (self.nodes or self.pods):
            return self.nodes
        known = self._jobs.get(name)
        if known is not None and known[0] is placements:
            return known[1]
        found: dict[Host, ReclaimNotice] = {}
        for host, placement in placements.items():
            by_pod, by_node = self.pods.get(placement.pod), self.nodes.get(placement.node)
            notice = by_pod or by_node
            if by_pod is not None and by_node is not None:  # Few of thousands of pods have a notice, hardly any two.
                notice = urgency.most_urgent([by_pod, by_node], self._policy)
            if notice is not None:
                found[host] = notice
        self._jobs[name] = (placements, found)
        return found

    def ahead_of(self, job: SupervisedJob, placements: Mapping[Host, Placement] | None) -> Ahead:
        """The hosts of a job with notices that the supervisor does not act on yet."""
        if not self.ahead:
            return _NONE_AHEAD
        found: dict[Host, Sequence[ReclaimNotice]] = {}
        for host in job.own_hosts:
            notices = self.ahead.get(host, ())
            if placements is not None:
                placement = placements.get(host)
                subjects = () if placement is None else (placement.node, placement.pod)
                notices = tuple(notice for subject in subjects for notice in self.ahead.get(subject, ()))
            if notices:
                found[host] = notices
        return found

    def forget_others(self, jobs: Container[JobName]) -> None:
        """Forgets all other jobs."""
        self._jobs = {name: known for name, known in self._jobs.items() if name in jobs}


class Facts:
    """Gives decisions their facts, only stored ones, so that no decision depends on a fact that a crash could lose.

    Notices that wait to be stored are only shown to the affected processes.
    """

    def __init__(  # noqa: PLR0913 - what it reads facts from
        self,
        store: Store,
        agents: AgentRegistry,
        unconfirmed: UnconfirmedNotices,
        policy: Policy,
        cluster_facts: ClusterFacts,
        *,
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._agents = agents
        self._unconfirmed = unconfirmed
        self._policy = policy
        self.cluster_facts = cluster_facts
        self._now = now
        self._pool = HostPool()
        self._loop_thread = OwnThread()
        self._identities = urgency.NodeIdentities()
        self._noticed = self._shown = NoticedSubjects(urgency.NoticesByUrgency(), self._identities, policy)
        self._notices: Mapping[NoticeId, ReclaimNotice] = {}
        self._versions: tuple[int, ...] = ()
        self._changes_at: float | None = None

    def noticed(self, name: JobName) -> Mapping[Host, ReclaimNotice]:
        """The hosts that a job must not use, with all noticed hosts of its own, each with its most urgent notice."""
        self._refresh()
        return self._noticed.of(name, self.cluster_facts.placements(name))

    def shown(self, name: JobName) -> Mapping[Host, ReclaimNotice]:
        """The result of `noticed`, with notices that are not stored yet. The job's processes get these."""
        self._refresh()
        return self._shown.of(name, self.cluster_facts.placements(name))

    def ahead(self, job: SupervisedJob) -> Ahead:
        """The hosts of a job with notices to act on later, or never: schedules that are not due, and hints."""
        self._refresh()
        return self._noticed.ahead_of(job, self.cluster_facts.placements(job.name))

    def binds(self, notice: ReclaimNotice) -> bool:
        """Whether a notice concerns a present node, whose metadata does not deny it, or a pod."""
        self._refresh()
        return urgency.binds(notice, self._identities)

    @property
    def changes_at(self) -> float | None:
        """When time alone changes on which notices the supervisor acts; None if it never does."""
        self._refresh()
        return self._changes_at

    def machine(self, node: Host) -> Machine:
        """The machine under a node, as its agent describes it; the node's labels fill in the rest."""
        agent = self._agents.by_node.get(node)
        labelled = self.cluster_facts.machine(node)
        return labelled if agent is None else agent.machine.or_else(labelled)

    def ranking(self) -> Ranking:
        """The present order in which jobs should use hosts."""
        self._refresh()
        noticed = self._noticed
        return Ranking(machine=self.machine, ahead=noticed.ahead, noticed=noticed.nodes, now=self._now())

    @property
    def announced(self) -> tuple[Announced, ...]:
        """The notices by node and by pod: first the stored ones, then the shown ones, then those to act on later.

        Each mapping is the same object until a notice or an agent changes, or a scheduled notice becomes due.
        """
        self._refresh()
        noticed, shown = self._noticed, self._shown
        return (noticed.nodes, noticed.pods, shown.nodes, shown.pods, noticed.ahead)

    @property
    def caught_up_at(self) -> float:
        """When a notice that had to wait for the store was last stored (Unix seconds; 0: never)."""
        return self._unconfirmed.caught_up_at

    def gone(self, job: SupervisedJob) -> frozenset[Host]:
        """Stored hosts of a run whose pods are gone, together with their notices, which do not count as withdrawn.

        It is empty if the launcher is gone as well, or all pods of a job without one: then the run has ended, and the
        stored job will show that.
        """
        placements = self.cluster_facts.placements(job.name)
        launcher = job.spec.launcher_host
        if not placements or not job.observed.running or (launcher is not None and launcher not in placements):
            return frozenset()
        return job.observed.hosts.difference(placements)

    def terminating(self, job: SupervisedJob, noticed: Collection[Host]) -> frozenset[Host]:
        """Excluded and noticed hosts whose pods are terminating.

        They must not return for their last moment, and their processes may end before the deadline.
        """
        hosts = job.decision.exclusions.union(noticed)
        placements = self.cluster_facts.placements(job.name) if hosts else None
        if placements is None:
            return frozenset()
        return frozenset(host for host in hosts if host in placements and placements[host].terminating)

    def granted(self, jobs: Mapping[JobName, SupervisedJob]) -> Mapping[JobName, Grant]:
        """The hosts that each job may start on, or grow by."""
        self._refresh()
        noticed, avoided = self._noticed.nodes, self._avoided()
        available = self._usable_meanwhile().union(self._agents.clear).difference(noticed, avoided)
        granted = self._pool.granted(jobs, available, noticed, self.ranking())
        others = [job for job in jobs.values() if kind_of(job.name) != STANDALONE]
        return {**granted, **self.cluster_facts.granted(others, noticed, avoided)} if others else granted

    def _avoided(self) -> frozenset[Host]:
        """The nodes with a scheduled notice that is near, although the supervisor does not act on it yet."""
        ahead, now = self._noticed.ahead.items(), self._now()
        return frozenset(
            Host(name)
            for name, notices in ahead
            if any(urgency.avoided_at(each, self._policy) <= now for each in notices)
        )

    def _usable_meanwhile(self) -> frozenset[Host]:
        """The nodes whose agents announce only notices that the supervisor does not act on yet."""
        agents, found = self._agents.by_node, set[Host]()
        for name, notices in self._noticed.ahead.items():
            agent = agents.get(Host(name))
            if agent is not None and agent.is_clear_but_for({notice.source for notice in notices}):
                found.add(agent.node)
        return frozenset(found)

    def missing(self, job: SupervisedJob) -> Missing:
        """Which hosts a waiting job cannot start on, and why."""
        self._refresh()
        noticed: Mapping[Host, ReclaimNotice] = self._noticed.nodes
        clear: Collection[Host] = self._agents.clear
        if self._noticed.ahead:
            avoided = self._avoided()
            noticed = {**{host: next(iter(self._noticed.ahead[host])) for host in avoided}, **noticed}
            clear = self._usable_meanwhile().union(clear).difference(avoided)
        unknown, holders = self._agents.unknown_sources, self._pool.holders
        return missing(job, NodesAtPresent(clear=clear, noticed=noticed, unknown=unknown, holders=holders))

    def waits_for(self, name: JobName) -> str:
        """The hosts that a job waits for, in sentences; empty if it does not wait for hosts."""
        job = self._store.snapshot().jobs.get(name)
        return "" if job is None else self.missing(job).summary

    def directives(self, name: JobName) -> JobDirectives | None:
        """The present directives of a job; None if it is unknown."""
        job = self._store.snapshot().jobs.get(name)
        return None if job is None else JobDirectives.of(job, self.shown(name), self._policy)

    def agreement(self, known: JobId) -> Agreement | None:
        """The present agreement of a job's ranks on a step."""
        job = self._store.snapshot().jobs.get(known.name)
        return None if job is None or job.id != known else job.decision.agreement

    def _refresh(self) -> None:
        """Computes anew which hosts have a notice, after notices, agents or nodes have changed, or a notice is due.

        A page that is rendered in a thread sees what the loop has computed last. If both computed at once, one could
        take back what the other has just seen, and no decision would heed a notice until the next one.
        """
        if not self._loop_thread.is_here():
            return
        snapshot, now = self._store.snapshot(), self._now()
        others = (self._agents.version, self._unconfirmed.version, self.cluster_facts.nodes_version)
        versions, is_due = (snapshot.version, *others), self._changes_at is not None and now >= self._changes_at
        if versions == self._versions and not is_due:
            return
        # Most changes concern jobs only.
        if is_due or others != self._versions[1:] or snapshot.notices != self._notices:
            self._notices = snapshot.notices
            uids, denying = self._agents.uids, self._agents.denying
            self._identities = identities = urgency.NodeIdentities(uids, self.cluster_facts.node_objects, denying)
            stored = shown = urgency.by_urgency(snapshot.notices.values(), now, self._policy)
            self._noticed = self._shown = NoticedSubjects(stored, identities, self._policy)
            if waiting := {notice.id: notice for notice in self._unconfirmed.all()}:
                shown = urgency.by_urgency({**snapshot.notices, **waiting}.values(), now, self._policy)
                self._shown = NoticedSubjects(shown, identities, self._policy)
            moments = (at for at in (stored.changes_at, shown.changes_at) if at is not None)
            self._changes_at = min(moments, default=None)
        self._noticed.forget_others(snapshot.jobs)
        self._shown.forget_others(snapshot.jobs)
        self._versions = versions
