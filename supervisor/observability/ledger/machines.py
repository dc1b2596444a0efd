"""Knows the machines under the hosts of jobs, and looks at those that are not known yet.

The ledger and the stays ask it, so that hours and hosts that went are of the same pools.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from servicekit.clock import Clock
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.ledger import HeldOn
from supervisor.observability.ledger.accounts import hosts_by_account

_LOOK_SECONDS = 600.0
"""For how long a machine that is not known yet is looked at: its agent takes a minute, and 16,000 looks take 0.06 s."""

_EVERY_SECONDS = 30.0

HeldOnEach = Callable[[JobName, Collection[Host]], Mapping[Host, HeldOn]]
"""Returns the kind of machine under each of these hosts of a job. A host may be left out: nothing is known of it."""


_NONE: Mapping[Host, HeldOn] = {}
NOTHING_KNOWN = HeldOn()
"""The kind of a machine of which nothing is known."""


@dataclass(slots=True)
class _Hosts:
    """The hosts of a job as it was seen last. `looking` says until when each host is looked at."""

    job: SupervisedJob
    listed: frozenset[Host] = frozenset()
    held: frozenset[Host] = frozenset()
    machines: Mapping[Host, HeldOn] = field(default_factory=lambda: _NONE)
    looking: dict[Host, float] = field(default_factory=dict)
    looked_at: float = 0.0


class HostMachines:
    """The kinds of machines of the hosts that jobs list.

    A machine is looked at when its host is listed, and when the job begins to hold it; from then on every half minute
    until all of its pool is known, for ten minutes at most. What is known stays so while the host is listed: of a
    machine that is reclaimed, the agent and the labels go before the host does.

    Args:
        clock: Of the monotonic kind.
        look: Looks at machines, which takes 3 µs each.
    """

    def __init__(self, clock: Clock, look: HeldOnEach = lambda _job, _hosts: {}) -> None:
        self._clock = clock
        self._look = look
        self._jobs: dict[JobName, _Hosts] = {}

    def of(self, job: SupervisedJob) -> Mapping[Host, HeldOn]:
        """Returns what is known of the machines of a job's hosts: the same object until that changes."""
        if job.over:
            self.forget(job.name)
            return _NONE
        now, hosts = self._clock.monotonic(), self._jobs.get(job.name)
        if hosts is None:
            hosts = self._jobs[job.name] = _Hosts(job)
            has_more = self._follow(hosts, now)
        else:
            before, hosts.job = hosts.job, job
            has_more = before is not job and self._follow(hosts, now)
        if hosts.looking and (has_more or now >= hosts.looked_at + _EVERY_SECONDS):
            self._look_at(hosts, now)
        return hosts.machines

    def forget(self, job: JobName) -> None:
        """Forgets the hosts of a job."""
        self._jobs.pop(job, None)

    def _follow(self, hosts: _Hosts, now: float) -> bool:
        """Notes which hosts the job lists and holds. Returns whether one is to be looked at that was not before."""
        listed = hosts.job.observed.hosts
        held = frozenset().union(*hosts_by_account(hosts.job).values())
        # A host that is held anew may be another pod of that name.
        fresh = (listed - hosts.listed) | (held - hosts.held)
        if hosts.listed - listed:
            hosts.machines = {host: on for host, on in hosts.machines.items() if host in listed}
            hosts.looking = {host: until for host, until in hosts.looking.items() if host in listed}
        hosts.listed, hosts.held = listed, held
        hosts.looking.update(dict.fromkeys(fresh, now + _LOOK_SECONDS))
        return bool(fresh)

    def _look_at(self, hosts: _Hosts, now: float) -> None:
        hosts.looking = {host: until for host, until in hosts.looking.items() if now < until}
        hosts.looked_at = now
        if not hosts.looking:
            return
        seen = self._look(hosts.job.name, frozenset(hosts.looking))
        found = {host: _joined(seen.get(host, NOTHING_KNOWN), hosts.machines.get(host)) for host in hosts.looking}
        new = {host: on for host, on in found.items() if on != hosts.machines.get(host)}
        if new:
            hosts.machines = {**hosts.machines, **new}
        for host, on in found.items():
            if on.pool.is_known:
                del hosts.looking[host]


def _joined(on: HeldOn, known: HeldOn | None) -> HeldOn:
    """Adds what is known of a machine to what is seen of it now: an agent and labels may each tell a part.

    If the two contradict each other, another machine has that name now, and nothing more is known of it.
    """
    if known is None or on == known:
        return on
    joined = on.or_else(known)
    return joined if joined.pool.says(known.pool) else on
