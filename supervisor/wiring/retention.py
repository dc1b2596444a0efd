"""Removes ended notices and jobs after the retention time."""

import asyncio
from dataclasses import dataclass

import structlog

from servicekit.clock import Clock
from servicekit.failpoints import failpoint
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

    async def run(self) -> None:
        """Root task: prunes at intervals."""
        while True:
            await self.once()
            await asyncio.sleep(_PRUNE_SECONDS)

    async def once(self) -> None:
        """Prunes once; what cannot be removed now is removed later."""
        failpoint(At.PRUNING)
        before = self.clock.now() - self.seconds
        try:
            await self.store.prune(before)
        except StoreUnavailableError as error:
            _log.warning("store.not_pruned", why=str(error))
        jobs = self.store.snapshot().jobs
        # Not later than the notice that explains the silence of a reclaimed node.
        self.agents.forget(before + SILENCE_SECONDS)
        self.pod_reports.forget_others(self.agents.all())
        self.launchers.forget_others(jobs)
        self.processes.forget_others(jobs)
        self.ranks.forget_others(jobs)
        self.saves.forget_others({job.uid for job in jobs.values()})
        self.members.forget_others(jobs)
        failpoint(At.PRUNED)
