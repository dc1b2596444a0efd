"""Finds running jobs with workers whose reclaim would not be noticed, or whose processes could not be told."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from supervisor.domain.ids import Host, JobId, JobName, namespace
from supervisor.domain.job import SupervisedJob
from supervisor.observability.hooks import LiveState
from supervisor.observability.notifications.message import Happening, Kind, identifier

_MAX_NAMES = 5


def uncovered(live: LiveState, job: SupervisedJob) -> Mapping[Host, str]:
    """The workers of a job that a reclaim would not reach, and what each lacks."""
    placements, streams = live.placements(job.name), live.processes.hosts(job.id)

    def node(host: Host) -> Host:
        if placements is None:
            return host
        return placements[host].node if host in placements else Host("")

    lacks = {host: (live.agents.connected(node(host)), host in streams) for host in job.workers}
    words = {(False, False): "agent and stream", (False, True): "agent", (True, False): "stream"}
    return {host: words[state] for host, state in lacks.items() if state in words}


@dataclass(slots=True)
class CoverageWatch:
    """Reports a job once when workers have been uncovered for `seconds`, and again after all were covered.

    Agents and processes of a new run, or those of a new leader, need some time to connect.
    """

    find: Callable[[SupervisedJob], Mapping[Host, str]]
    seconds: float
    _since: dict[JobId, dict[Host, float]] = field(default_factory=dict)
    _told: set[JobId] = field(default_factory=set)

    def look(self, jobs: Mapping[JobName, SupervisedJob], now: float) -> Iterator[Happening]:
        for gone in self._since.keys() - {job.id for job in jobs.values()}:
            self._forget(gone)
        for job in jobs.values():
            missing = self.find(job)
            if not missing:
                self._forget(job.id)
                continue
            before = self._since.get(job.id, {})
            since = self._since[job.id] = {host: before.get(host, now) for host in missing}
            lasting = sorted(host for host, at in since.items() if now - at >= self.seconds)
            if lasting and job.id not in self._told:
                self._told.add(job.id)
                yield _happening(job, lasting, missing, now)

    def _forget(self, job: JobId) -> None:
        self._since.pop(job, None)
        self._told.discard(job)


def _happening(job: SupervisedJob, hosts: list[Host], missing: Mapping[Host, str], now: float) -> Happening:
    named = ", ".join(f"{host} ({missing[host]})" for host in hosts[:_MAX_NAMES])
    more = f" and {len(hosts) - _MAX_NAMES} more" if len(hosts) > _MAX_NAMES else ""
    return Happening(
        id=identifier(job.uid, job.observed.run, Kind.UNCOVERED, *hosts),
        kind=Kind.UNCOVERED,
        text=f"A reclaim would not reach {named}{more}: what is missing is in parentheses.",
        at=now,
        namespace=namespace(job.name),
        job=job.name,
        hosts=tuple(hosts),
    )
