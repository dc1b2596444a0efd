"""The status as the command sees it: joined from the pages of `GET /v1/status`, or computed from a cluster's resources.

Times are seconds before or after the moment of the status. None stands for a value that the backend cannot see.
"""

from collections.abc import Container, Iterator, Mapping

import msgspec

from job_supervisor.cli.text import duration
from supervisor.decide.ranks import RankCounts
from supervisor.domain.ids import STANDALONE, Host, JobName, kind_of
from supervisor.domain.notice import NoticeClass, SubjectKind
from supervisor.observability.views import AgentView, GroupView, HostView, JobView, LeaderView, NoticeView


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment; `now` is Unix seconds. `unseen` lists in sentences what this backend cannot see.

    `unconfirmed` notices are announced but not stored yet, for example because the supervisor cannot write.
    """

    now: float
    jobs: list[JobView]
    notices: list[NoticeView]
    unconfirmed: list[NoticeView] = []
    agents: list[AgentView] | None = None
    groups: list[GroupView] = []
    leader: LeaderView | None = None
    unseen: list[str] = []

    def find(self, name: str) -> Iterator[JobView]:
        """Finds jobs by the full name, by `namespace/name`, or by the name alone; each may begin with `job/`."""
        for wanted in (name, name.removeprefix("job/")):
            exact = [job for job in self.jobs if job.job == wanted]
            found = exact or [job for job in self.jobs if wanted in _short(job.job)]
            if found:
                yield from found
                return

    @property
    def active(self) -> list[NoticeView]:
        """The active notices, also those that are not stored yet."""
        return [notice for notice in self.by_id.values() if notice.active]

    @property
    def limits(self) -> list[str]:
        """Sentences about what cannot be seen."""
        return [f"Not visible: {limit}" for limit in self.unseen]

    @property
    def by_id(self) -> Mapping[str, NoticeView]:
        """The notices; an unconfirmed one is newer than a stored one of the same id."""
        return {notice.id: notice for notice in (*self.notices, *self.unconfirmed)}

    def hosts_of(self, job: JobView) -> list[HostView]:
        """The hosts that a job holds; if it holds none, the nodes in its launcher's list."""
        if job.host_states or job.over or kind_of(job.job) != STANDALONE:
            return job.host_states
        noticed = {notice.subject: notice for notice in self.by_id.values() if notice.active and notice.acted_on}
        agents = None if self.agents is None else {agent.node for agent in self.agents if agent.connected}
        return [_listed(host, noticed.get(host), agents) for host in job.hosts]

    def is_unconfirmed(self, notice: NoticeView) -> bool:
        """Whether the notice is not stored yet."""
        return any(notice is one for one in self.unconfirmed)

    def concerned(self, kind: SubjectKind, subject: str) -> list[JobView]:
        """The jobs that have a host on that node, or whose host is that pod."""
        return [job for job in self.jobs if self.hosts_on(job, kind, subject)]

    def hosts_on(self, job: JobView, kind: SubjectKind, subject: str) -> list[HostView]:
        """The hosts of a job on that node, or the one that is that pod."""
        return [host for host in job.host_states if _is_on(host, job, kind, subject)]


def is_drained(notice: NoticeView) -> bool:
    """Whether a drain's time is over: the node stands empty until somebody ends the drain."""
    return notice.drains and notice.active and notice.seconds_left == 0


def going(notice: NoticeView) -> str:
    """Says what becomes of the subject, according to whom, as a sentence without its subject and full stop."""
    when = "at an unknown time" if notice.seconds_left is None else f"in {duration(notice.seconds_left)}"
    if notice.drains:
        by = f"drained by {notice.message or 'an operator'}"
        return f"is {by}" if is_drained(notice) else f"is being {by}, and has to be empty {when}"
    return f"will be gone {when}, says {notice.source}{' (a drill: the machine stays)' if notice.simulated else ''}"


def has_ended(notice: NoticeView) -> str:
    """Says that the notice has ended."""
    return "The drain has ended." if notice.drains else f"The notice of {notice.source} has ended."


def source_label(notice: NoticeView) -> str:
    """The source, and that it holds a drill or announces something that is not sudden."""
    if notice.simulated:
        return f"{notice.source} (drill)"
    if notice.drains:
        return f"{notice.source} (drain)"
    return notice.source if notice.notice_class is NoticeClass.SUDDEN else f"{notice.source} ({notice.notice_class})"


def rank_fault(ranks: RankCounts) -> str:
    """Why nobody can answer a STOP for the job, as a sentence; empty if rank 0 can, or if nothing is known."""
    if ranks.processes and not ranks.ranked:
        return f"No process is rank 0: none of the {ranks.processes} that are connected knows its rank."
    if ranks.processes and not ranks.zeros:
        return f"No process is rank 0: {ranks.processes} are connected, and none of them is it."
    if ranks.zeros > 1:
        return f"{ranks.zeros} processes say that they are rank 0: the first one to answer ends the run of all."
    return ""


def _short(name: JobName) -> tuple[str, ...]:
    """`namespace/kind.name` is also known as `namespace/name`, `name` and `kind.name`."""
    namespace, slash, resource = name.partition("/")
    bare = resource.partition(".")[2]
    return (f"{namespace}/{bare}", bare, resource) if slash else ()


def _listed(host: Host, notice: NoticeView | None, agents: Container[Host] | None) -> HostView:
    return HostView(
        host=host,
        node=host,
        notice=None if notice is None else notice.id,
        seconds_left=None if notice is None else notice.seconds_left,
        agent=None if agents is None else host in agents,
    )


def _is_on(host: HostView, job: JobView, kind: SubjectKind, subject: str) -> bool:
    if kind is SubjectKind.POD:
        return subject == f"{job.job.partition('/')[0]}/{host.host}"
    return subject == (host.node or host.host)
