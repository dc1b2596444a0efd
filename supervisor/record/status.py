"""`GET /v1/status`: everything at once, for people and tools that only look."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from servicekit.clock import Clock
from supervisor.domain.ids import Source
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.identity.tokens import Viewer
from supervisor.ingest.http import Bearer, bearer_as
from supervisor.presence import Agents, AgentView, SourceState
from supervisor.refusals import Refusals
from supervisor.store.interface import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusEndpoint:
    """Read-only, with a viewer's token."""

    store: Store
    agents: Agents
    refusals: Refusals
    bearer: Bearer
    clock: Clock

    def routes(self) -> list[web.RouteDef]:
        """What is served here."""
        return [web.get("/v1/status", self.status)]

    async def status(self, request: web.Request) -> web.Response:
        """Jobs, notices, agents and what was refused, as JSON."""
        await bearer_as(Viewer, request, self.bearer)
        snapshot, now = self.store.snapshot(), self.clock.now()
        return web.json_response(
            {
                "now": now,
                "jobs": [_job(job) for job in snapshot.jobs.values()],
                "notices": [_notice(notice, now) for notice in snapshot.notices.values()],
                "agents": [_agent(agent) for agent in self.agents.all().values()],
                "refused": _refused(self.refusals),
            }
        )


def _job(job: SupervisedJob) -> Mapping[str, Any]:
    decision = job.decision
    return {
        "job": job.name,
        "phase": decision.phase,
        "reason": decision.reason,
        "generation": decision.generation,
        "run": job.observed.run,
        "running": job.observed.running,
        "hosts": sorted(job.observed.hosts),
        "workers": sorted(decision.hosts - decision.exclusions),
        "exclusions": sorted(decision.exclusions),
        "min_workers": job.spec.min_workers,
        "max_workers": job.spec.max_workers,
    }


def _notice(notice: ReclaimNotice, now: float) -> Mapping[str, Any]:
    return {
        "id": notice.id,
        "episode": notice.episode,
        "source": notice.source,
        "subject": notice.subject.name,
        "state": notice.state,
        "seconds_left": None if notice.deadline is None else max(0.0, notice.deadline - now),
    }


def _agent(agent: AgentView) -> Mapping[str, Any]:
    return {
        "node": agent.node,
        "connected": agent.connected,
        "sources": _sources(agent.sources),
        "pod_sources": _sources(agent.pod_sources),
    }


def _sources(states: Mapping[Source, SourceState]) -> list[Mapping[str, Any]]:
    return [{"source": source, "state": state} for source, state in states.items()]


def _refused(refusals: Refusals) -> list[Mapping[str, Any]]:
    counts = sorted(refusals.counts().items())
    return [{"wire": wire, "code": code, "count": count} for (wire, code), count in counts]
