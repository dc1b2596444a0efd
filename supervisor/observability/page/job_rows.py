"""Selects the jobs that the page of all jobs shows. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.decide.urgency import deadline_of
from supervisor.domain.ids import namespace
from supervisor.domain.job import Phase
from supervisor.domain.notice import NoticeState
from supervisor.observability.page.contents import urgency
from supervisor.observability.page.tables import TableColumn, TableFilter, TableForm, TableLayout, TablePage, listed
from supervisor.observability.status_view import JobFactsSnapshot, PagedJob, StatusPage, StatusSnapshot, status_view
from supervisor.observability.views import JobView, StatusView

MAX_NAMESPACES = 200
"""Namespaces that the form suggests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsRow:
    """A job. `ends` is the instant at which the first of its noticed hosts is gone; None if none has a notice."""

    facts: JobFactsSnapshot
    ends: float | None

    @property
    def namespace(self) -> str:
        """Its namespace; empty outside of a cluster."""
        return namespace(self.facts.job.name)


JOBS: TableLayout[JobsRow] = TableLayout(
    columns={
        "phase": TableColumn("Phase", lambda row: urgency(row.facts.job.decision.phase, row.facts.job.name)),
        "job": TableColumn("Job", lambda row: row.facts.job.name),
        "since": TableColumn(
            "Since", lambda row: None if row.facts.since is None else (-row.facts.since, row.facts.job.name)
        ),
        "workers": TableColumn("Workers", lambda row: (len(row.facts.job.workers), row.facts.job.name)),
        "left": TableColumn(
            "First host gone in", lambda row: None if row.ends is None else (row.ends, row.facts.job.name)
        ),
    },
    filters={
        "phase": TableFilter(
            "in the phase",
            {phase.value: phase.value for phase in Phase},
            lambda row, wanted: row.facts.job.decision.phase == wanted,
        )
    },
    exact={"namespace": lambda row: row.namespace},
    words=lambda row: f"{row.facts.job.name} {row.facts.job.decision.phase} {row.facts.job.decision.reason}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsContents:
    """One page of the jobs, and the namespaces that there are."""

    view: StatusView
    table: TablePage[JobsRow]
    jobs: Sequence[JobView]
    namespaces: Sequence[str]


def jobs_contents(snapshot: StatusSnapshot, form: TableForm) -> JobsContents:
    rows = [JobsRow(facts=facts, ends=_ends(facts, snapshot)) for facts in snapshot.jobs]
    table = listed(rows, form, JOBS)
    # Only for the jobs of the page: their views look at each host and each process.
    page = StatusPage(first=False, jobs=[PagedJob(row.facts, row.facts.hosts) for row in table.rows])
    view = status_view(snapshot, page)
    namespaces = sorted({row.namespace for row in rows} - {""})
    return JobsContents(view=view, table=table, jobs=view.jobs, namespaces=namespaces[:MAX_NAMESPACES])


def _ends(facts: JobFactsSnapshot, snapshot: StatusSnapshot) -> float | None:
    noticed = (facts.noticed[host] for host in facts.noticed.keys() & facts.job.own_hosts)
    active = (notice for notice in noticed if notice.state is NoticeState.ACTIVE)
    return min((deadline_of(notice, snapshot.policy) for notice in active), default=None)
