"""The quota of each launcher token: it limits the hosts of all its jobs together, as limits per job would multiply."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.ingest.errors import TooManyError
from supervisor.store.interface import Store

MAX_JOBS = 1000


@dataclass(frozen=True, slots=True)
class _Claim:
    """A job that is being stored with `hosts` hosts."""

    launcher: str
    job: JobName
    hosts: int


@dataclass(frozen=True, slots=True)
class LauncherQuotas:
    """Counts the jobs of each launcher token and the hosts that they list.

    Jobs that are being stored count from their claim on, so that concurrent requests cannot use the same quota twice.
    """

    store: Store
    max_hosts: int
    _claims: dict[int, _Claim] = field(default_factory=dict)

    @contextmanager
    def claim(self, launcher: str, name: JobName, hosts: int) -> Iterator[None]:
        """Counts the job with that many hosts while the context lasts; leave it once the job is stored."""
        claim = _Claim(launcher, name, hosts)
        self._claims[id(claim)] = claim
        try:
            yield
        finally:
            del self._claims[id(claim)]

    def accepted(self, known: SupervisedJob, hosts: frozenset[Host]) -> frozenset[Host]:
        """The part of `hosts` that an existing job may list; the hosts that it listed before always fit."""
        listed = known.observed.hosts
        if len(hosts) <= len(listed):
            return hosts
        launcher = known.observed.launcher
        most = max(len(listed), self.max_hosts - sum(self._held(launcher, but=known.name).values()))
        if len(hosts) <= most:
            return hosts
        kept = hosts & listed
        return kept | frozenset(sorted(hosts - kept)[: most - len(kept)])

    def evictable(
        self, launcher: str, name: JobName, hosts: int, order: Callable[[SupervisedJob], tuple[bool, float] | None]
    ) -> list[SupervisedJob]:
        """The jobs of the token that have to be forgotten to make room for a new one.

        Args:
            launcher: The name of the token.
            name: The name of the new job.
            hosts: The number of hosts that it lists.
            order: The sort key of a job that may be forgotten; None for one that may not.

        Raises:
            TooManyError: There would not be enough room even without all those jobs.
        """
        jobs, held = self.store.snapshot().jobs, self._held(launcher, but=name)
        idle = sorted((at, job.name) for job in jobs.values() if job.name in held and (at := order(job)) is not None)
        chosen: list[SupervisedJob] = []
        for _, each in idle:
            if self._fits(held, hosts):
                break
            chosen.append(jobs[each])
            del held[each]
        if not self._fits(held, hosts):
            raise TooManyError(self.refusal(launcher, name, hosts, going_on=True))
        return chosen

    def refusal(self, launcher: str, name: JobName, hosts: int, *, going_on: bool = False) -> str:
        """The message for a job that exceeds the quota."""
        held = self._held(launcher, but=name)
        others = f"its other {len(held)} jobs{' that go on' if going_on else ''} have {sum(held.values())}"
        return (
            f"{name} lists {hosts} hosts and {others}: the launcher token {launcher} may have {MAX_JOBS} jobs, and "
            f"{self.max_hosts} hosts in all of them together"
        )

    def _fits(self, others: dict[JobName, int], hosts: int) -> bool:
        return len(others) < MAX_JOBS and sum(others.values()) + hosts <= self.max_hosts

    def _held(self, launcher: str, but: JobName) -> dict[JobName, int]:
        """The number of hosts of each other job of the token, including jobs that are being stored."""
        jobs = self.store.snapshot().jobs.values()
        held = {job.name: len(job.observed.hosts) for job in jobs if job.observed.launcher == launcher}
        for claim in self._claims.values():
            if claim.launcher == launcher:
                held[claim.job] = max(claim.hosts, held.get(claim.job, 0))
        held.pop(but, None)
        return held
