"""Computes the status from the custom resources of a cluster, with the code of the supervisor's own status. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from job_supervisor.cli.status import Status
from supervisor.decide.explanation import NO_NODES, NOTHING, missing
from supervisor.decide.policy import Policy
from supervisor.decide.urgency import NodeIdentities, by_urgency, most_urgent, noticed_hosts, noticed_pods
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import STANDALONE, Host, JobName, kind_of
from supervisor.domain.job import Decision, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.observability.snapshot import JobFactsSnapshot, StatusSnapshot
from supervisor.observability.status_view import status_view
from supervisor.observability.views import LeaderView
from supervisor.store.codec import StoredRecord
from supervisor.store.conditions import ResourceCondition

Placements = Mapping[JobName, Mapping[Host, Placement]]
"""The placements of the hosts of each job."""

_CONDITION = {"Suspended": "Suspended", "Finished": "Finished", "TimedOut": "Finished"}
"""The condition whose last transition began a phase. Not `Running`: it also holds while a job shrinks."""

_POLICY = Policy()
"""The supervisor's own policy is unknown; the defaults apply to notices without a time."""


def status_of(
    jobs: Iterable[StoredRecord[SupervisedJob]],
    notices: Iterable[StoredRecord[ReclaimNotice]],
    placements: Placements,
    now: float,
    unseen: list[str],
) -> Status:
    """The status at `now`, in Unix seconds; `unseen` is passed on."""
    newest = _newest(notices)
    active = [notice for notice in newest if notice.state is NoticeState.ACTIVE]
    noticed = _Noticed(by_urgency(active, now, _POLICY).acted_on)
    snapshot = StatusSnapshot(
        now=now,
        policy=_POLICY,
        leader=LeaderView(name="", acts=False, serving_seconds=0.0),
        jobs=tuple(found for each in jobs if (found := _seen(each, noticed, placements)) is not None),
        notices=tuple(newest),
        unconfirmed=(),
        groups=(),
        agents={},
        silent={},
        refused={},
    )
    view = status_view(snapshot)
    # What only the leader's streams tell is unknown here, and not false.
    shown = [
        replace(job, host_states=[replace(host, agent=None, stream=None) for host in job.host_states])
        for job in view.jobs
    ]
    return Status(now=now, jobs=shown, notices=view.notices, unseen=unseen)


def _newest(records: Iterable[StoredRecord[ReclaimNotice]]) -> list[ReclaimNotice]:
    """The newest completely written episode of each notice."""
    values = [each.value for each in records if each.value is not None]
    return list({value.id: value for value in sorted(values, key=lambda value: value.episode)}.values())


class _Noticed:
    def __init__(self, active: Sequence[ReclaimNotice]) -> None:
        self._nodes, self._pods = noticed_hosts(active, NodeIdentities(), _POLICY), noticed_pods(active, _POLICY)

    def of(self, job: SupervisedJob, placements: Mapping[Host, Placement] | None) -> Mapping[Host, ReclaimNotice]:
        """The most urgent notice of each noticed host."""
        if placements is None:
            return self._nodes
        found = {host: self._at(placements[host]) for host in job.own_hosts & placements.keys()}
        return {host: notice for host, notice in found.items() if notice is not None}

    def _at(self, placement: Placement) -> ReclaimNotice | None:
        return most_urgent([self._nodes.get(placement.node), self._pods.get(placement.pod)], _POLICY)


def _seen(record: StoredRecord[SupervisedJob], noticed: _Noticed, placements: Placements) -> JobFactsSnapshot | None:
    job = record.value
    if job is None:
        return None
    where = None if kind_of(job.name) == STANDALONE else placements.get(job.name, {})
    return JobFactsSnapshot(
        job=job,
        noticed=noticed.of(job, where),
        placements=where,
        streams=frozenset(),
        missing=(lambda: NOTHING) if where is None else partial(missing, job, NO_NODES),
        since=_since(job.decision, record.conditions),
    )


def _since(decision: Decision, conditions: Iterable[ResourceCondition]) -> float | None:
    if decision.stop is not None:
        return decision.stop.since
    kind = _CONDITION.get(decision.phase)
    return next((each.last_transition_time for each in conditions if each.type == kind), None)
