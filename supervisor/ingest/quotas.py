"""The budget of a launcher token: the hosts of all its jobs together, as limits of each job would multiply."""

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
    """A job is about to be stored with so many hosts."""

    launcher: str
    job: JobName
    hosts: int


@dataclass(frozen=True, slots=True)
class LauncherQuotas:
    """Counts the jobs of each launcher token and the hosts that they list.

    Jobs that are being stored count from the moment they are claimed, so that requests that arrive together cannot
    each take the same room.
    """

    store: Store
    most_hosts: int
    _claims: dict[int, _Claim] = field(default_factory=dict)

    @contextmanager
    def claim(self, launcher: str, name: JobName, hosts: int) -> Iterator[None]:
        """Counts the job with that many hosts for as long as the context lasts, which ends once it is stored."""
        claim = _Claim(launcher, name, hosts)
        self._claims[id(claim)] = claim
        try:
            yield
        finally:
            del self._claims[id(claim)]

    def fitting(self, known: SupervisedJob, hosts: frozenset[Host]) -> frozenset[Host]:
        """Those of `hosts` that a job may list which is there already; what it listed before always fits."""
        listed = known.observed.hosts
        if len(hosts) <= len(listed):
            return hosts
        launcher = known.observed.launcher
        most = max(len(listed), self.most_hosts - sum(self._held(launcher, but=known.name).values()))
        if len(hosts) <= most:
            return hosts
        kept = hosts & listed
        return kept | frozenset(sorted(hosts - kept)[: most - len(kept)])

    def evictable(
        self, launcher: str, name: JobName, hosts: int, turn: Callable[[SupervisedJob], tuple[bool, float] | None]
    ) -> list[SupervisedJob]:
        """The jobs of the token that have to be forgotten before another one is stored with that many hosts.

        Args:
            launcher: Whose token it is.
            name: The new job's.
            hosts: How many it lists.
            turn: Orders the jobs that may be forgotten; None for one that may not.

        Raises:
            TooManyError: There is not enough room even without all of those.
        """
        jobs, held = self.store.snapshot().jobs, self._held(launcher, but=name)
        idle = sorted((at, job.name) for job in jobs.values() if job.name in held and (at := turn(job)) is not None)
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
        """Why a job cannot be stored with that many hosts."""
        held = self._held(launcher, but=name)
        others = f"its other {len(held)} jobs{' that go on' if going_on else ''} have {sum(held.values())}"
        return (
            f"{name} lists {hosts} hosts and {others}: the launcher token {launcher} may have {MAX_JOBS} jobs, and "
            f"{self.most_hosts} hosts in all of them together"
        )

    def _fits(self, others: dict[JobName, int], hosts: int) -> bool:
        return len(others) < MAX_JOBS and sum(others.values()) + hosts <= self.most_hosts

    def _held(self, launcher: str, but: JobName) -> dict[JobName, int]:
        """How many hosts each other job of the token lists, or is about to list."""
        jobs = self.store.snapshot().jobs.values()
        held = {job.name: len(job.observed.hosts) for job in jobs if job.observed.launcher == launcher}
        for claim in self._claims.values():
            if claim.launcher == launcher:
                held[claim.job] = max(claim.hosts, held.get(claim.job, 0))
        held.pop(but, None)
        return held
