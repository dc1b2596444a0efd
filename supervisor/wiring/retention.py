"""Removes ended notices and jobs after the retention time."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.reconcile import reconcile
from supervisor.domain.job import SupervisedJob, with_end
from supervisor.failpoints import At
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.members import MemberStreams
from supervisor.fanout.processes import Processes
from supervisor.fanout.ranks import RankStates
from supervisor.fanout.saves import Saves
from supervisor.ingest.agent_registry import SILENCE_SECONDS, AgentRegistry
from supervisor.ingest.pod_reports import PodReports
from supervisor.store.interface import Store, StoreUnavailableError

_PRUNE_SECONDS = 600.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Keeps ended notices and jobs, and everything known about them, for `seconds`."""

    store: Store
    agents: AgentRegistry
    pod_reports: PodReports
    launchers: Launchers
    processes: Processes
    ranks: RankStates
    saves: Saves
    members: MemberStreams
    clock: Clock
    seconds: float
    bulkhead: Bulkhead

    async def run(self) -> None:
        """Root task: prunes at intervals."""
        await reconcile("retention", self.once, self.bulkhead)

    async def once(self) -> float:
        """Prunes once; what cannot be removed now is removed later. Returns the seconds until the next time."""
        failpoint(At.PRUNING)
        before = self.clock.now() - self.seconds
        with self.bulkhead.guard("retention", "store"):
            await self._prune(before)
        jobs = {job.id for job in self.store.snapshot().jobs.values()}
        # Not later than the notice that explains the silence of a reclaimed node.
        self.agents.forget(before + SILENCE_SECONDS)
        for part, forget in (
            ("pod reports", partial(self.pod_reports.forget_others, self.agents.all())),
            ("launchers", partial(self.launchers.forget_others, jobs)),
            ("processes", partial(self.processes.forget_others, jobs)),
            ("ranks", partial(self.ranks.forget_others, jobs)),
            ("saves", partial(self.saves.forget_others, jobs)),
            ("members", partial(self.members.forget_others, jobs)),
        ):
            with self.bulkhead.guard("retention", part):
                forget()
        failpoint(At.PRUNED)
        return _PRUNE_SECONDS

    async def _prune(self, before: float) -> None:
        try:
            await self._note_ends()
            await self.store.prune(before)
        except StoreUnavailableError as error:
            _log.warning("store.not_pruned", why=str(error))

    async def _note_ends(self) -> None:
        """Notes the end of jobs that an earlier version has stored without it, and that nobody observes any more."""
        for job in self.store.snapshot().jobs.values():
            if job.over and job.observed.ended_at is None:
                with suppress(StoreUnavailableError):  # It is noted the next time.
                    await self.store.put_job(job.name, self._ended)

    def _ended(self, job: SupervisedJob | None) -> SupervisedJob | None:
        return None if job is None else with_end(job, self.clock.now())
