"""Reads from a cluster the status (custom resources), the places of jobs' hosts (pods) and the past (Events)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial

import msgspec
from msgspec.structs import replace

from job_supervisor.cli.backend import PastEntry, SeenStatus
from servicekit.kubernetes.client import ResourceClient, Selection
from servicekit.kubernetes.errors import NotFoundError, RefusedError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.events import REPORTER
from supervisor.cluster.objects import PODS, Pod, placements_of, pod_or_outline
from supervisor.cluster.requests import CORE_EVENTS, EVENTS
from supervisor.decide.explanation import NO_NODES, NOTHING, missing
from supervisor.decide.policy import Policy
from supervisor.decide.urgency import NodeIdentities, by_urgency, most_urgent, noticed_hosts, noticed_pods
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import STANDALONE, Host, JobName, cluster_job, kind_of
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.observability.status_view import JobFactsSnapshot, StatusSnapshot, status_view
from supervisor.observability.views import LeaderView
from supervisor.store.codec import JOBS, StoredRecord

Placements = Mapping[JobName, Mapping[Host, Placement]]
"""The placements of the hosts of each job."""

_CONDITION = {"Suspended": "Suspended", "Finished": "Finished", "TimedOut": "Finished"}
"""The condition whose last transition began a phase. Not `Running`: it also holds while a job shrinks."""

_POLICY = Policy()
"""The supervisor's own policy is unknown; the defaults apply to notices without a time."""


class NamedObject(msgspec.Struct, frozen=True):
    """An object; only its metadata are decoded."""

    metadata: Metadata


def named_object(data: bytes | msgspec.Raw) -> NamedObject:
    return msgspec.json.decode(data, type=NamedObject)


def status_of(
    jobs: Iterable[StoredRecord[SupervisedJob]],
    notices: Iterable[StoredRecord[ReclaimNotice]],
    placements: Placements,
    now: float,
    unseen: list[str],
) -> SeenStatus:
    """Computes the status at `now` (Unix seconds) with the supervisor's own code. `unseen` becomes part of it."""
    written = [each.value for each in notices if each.value is not None]
    # The newest completely written episode of each notice.
    newest = list({value.id: value for value in sorted(written, key=lambda value: value.episode)}.values())
    active = by_urgency([each for each in newest if each.state is NoticeState.ACTIVE], now, _POLICY).acted_on
    nodes, pods = noticed_hosts(active, NodeIdentities(), _POLICY), noticed_pods(active, _POLICY)
    found = []
    for record in jobs:
        if record.value is not None:
            where = None if kind_of(record.value.name) == STANDALONE else placements.get(record.value.name, {})
            found.append(_job_status(record.value, record, where, nodes, pods))
    view = status_view(
        StatusSnapshot(
            now=now,
            policy=_POLICY,
            leader=LeaderView(name="", acts=False, serving_seconds=0.0),
            jobs=tuple(found),
            notices=tuple(newest),
            unconfirmed=(),
            groups=(),
            agents={},
            silent={},
            refused={},
        )
    )
    # Only the streams of the leader show these facts, so they are unknown here, and not false.
    shown = [
        replace(job, host_states=[replace(host, agent=None, stream=None) for host in job.host_states])
        for job in view.jobs
    ]
    return SeenStatus(now=now, jobs=shown, notices=view.notices, unseen=unseen)


def _job_status(
    job: SupervisedJob,
    record: StoredRecord[SupervisedJob],
    where: Mapping[Host, Placement] | None,
    nodes: Mapping[Host, ReclaimNotice],
    pods: Mapping[str, ReclaimNotice],
) -> JobFactsSnapshot:
    noticed = nodes
    if where is not None:  # The most urgent notice of each noticed host.
        urgent = {
            host: most_urgent([nodes.get(where[host].node), pods.get(where[host].pod)], _POLICY)
            for host in job.own_hosts & where.keys()
        }
        noticed = {host: notice for host, notice in urgent.items() if notice is not None}
    since = None if job.decision.stop is None else job.decision.stop.since
    if job.decision.stop is None:
        kind = _CONDITION.get(job.decision.phase)
        since = next((each.last_transition_time for each in record.conditions if each.type == kind), None)
    return JobFactsSnapshot(
        job=job,
        noticed=noticed,
        placements=where,
        streams=frozenset(),
        missing=(lambda: NOTHING) if where is None else partial(missing, job, NO_NODES),
        since=since,
    )


async def placements_by_job(server: ApiServer, chosen: Selection) -> Placements:
    """Lists the placements of the hosts of all jobs, of all kinds.

    Raises:
        ApiError: See `ResourceClient.list`.
    """
    # Imported here: the kinds' code is not needed for anything else, and takes half a second to load.
    from supervisor.jobs.registry import KINDS, POD_LABELS  # noqa: PLC0415

    labels = POD_LABELS
    pods = await ResourceClient(server, PODS, lambda data: pod_or_outline(data, labels), chosen).list("0")
    found = defaultdict[JobName, list[Pod]](list)
    for pod in pods.objects:
        for reference in filter(None, (kind.reference(pod) for kind in KINDS)):
            found[reference.name].append(pod)
    return {job: placements_of(of_job) for job, of_job in found.items()}


async def labelled(server: ApiServer, namespace: str, selector: str) -> frozenset[JobName]:
    """Lists the jobs of all kinds whose objects have these labels, including jobs that are not supervised.

    Raises:
        ApiError: See `ResourceClient.list`.
    """
    # Imported here, as above.
    from supervisor.jobs.registry import RESOURCES  # noqa: PLC0415

    found: set[JobName] = set()
    chosen = Selection(namespace=namespace, labels=selector)
    for name, resource in RESOURCES.items():
        try:
            objects = (await ResourceClient(server, resource, named_object, chosen).list()).objects
        except NotFoundError:  # The cluster has no such operator.
            continue
        found.update(JobName(f"{each.metadata.namespace}/{name}.{each.metadata.name}") for each in objects)
    return frozenset(found)


def job_of_object(group: str, kind: str, key: ObjectKey) -> JobName | None:
    """Returns the name of the job that an object of this API group and kind is; None if it is none."""
    # Imported here, as above.
    from supervisor.jobs.registry import RESOURCES  # noqa: PLC0415

    kinds = (name for name, each in RESOURCES.items() if (each.group, each.kind) == (group, kind))
    return next((cluster_job(key.namespace, name, key.name) for name in kinds), None)


class _EventSubject(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class _EventSeries(msgspec.Struct, frozen=True, rename="camel"):
    count: int = 1
    last_observed_time: datetime | None = None


class _ListedEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An Event from either of two APIs, which store the same objects and name their fields differently."""

    metadata: Metadata
    event_time: datetime | None = None
    reporting_controller: str = ""
    reporting_component: str = ""
    regarding: _EventSubject = _EventSubject()
    involved_object: _EventSubject = _EventSubject()
    reason: str = ""
    note: str = ""
    message: str = ""
    series: _EventSeries | None = None


async def past_events(server: ApiServer, namespace: str) -> list[PastEntry]:
    """Lists the decisions in the supervisor's Events. Its other Events repeat a notice, or refer to the Event of a job.

    Raises:
        RefusedError: The user may not list Events.
        ApiError: See `ResourceClient.list`.
    """

    def decode(data: bytes | msgspec.Raw) -> _ListedEvent:
        return msgspec.json.decode(data, type=_ListedEvent)

    chosen = Selection(namespace=namespace)
    try:
        listed = await ResourceClient(server, EVENTS, decode, chosen).list()
    except RefusedError:  # The view role of Kubernetes permits the core Events alone.
        listed = await ResourceClient(server, CORE_EVENTS, decode, chosen).list()
    entries = []
    for event in listed.objects:
        about = event.regarding if event.regarding.name else event.involved_object
        ours = REPORTER in (event.reporting_controller, event.reporting_component)
        if not ours or event.event_time is None or about.kind != JOBS.kind:
            continue
        repeated = ""
        if event.series is not None and event.series.last_observed_time is not None:
            last = f"{event.series.last_observed_time:%H:%M:%S}"
            repeated = f" ({event.series.count} times, last at {last} UTC)"
        name = JobName(f"{about.namespace}/{about.name}")
        text = f"{event.note or event.message}{repeated}"
        at = event.event_time.timestamp()
        entries.append(PastEntry(at=at, subject=f"job/{name}", what=event.reason, text=text, jobs=[name]))
    return entries
