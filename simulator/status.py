"""The supervisor's `GET /v1/status`, for people and for tests that wait. The judge never reads it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import aiohttp
import msgspec

TIMEOUT_SECONDS = 2.0


class StatusUnavailable(ConnectionError):  # noqa: N818 - the name describes the state
    """The supervisor gives no usable answer now. Try again later."""


@dataclass(frozen=True, slots=True)
class ReadJobStatus:
    job: str
    phase: str
    reason: str = ""
    generation: int = 0
    run: int = 0
    running: bool = False
    hosts: list[str] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)
    exclusions: list[str] = field(default_factory=list)
    min_workers: int = 0
    max_workers: int = 0
    step_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class NoticeStatus:
    id: str
    source: str
    subject: str
    state: str
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class ReadSourceStatus:
    source: str
    state: str


@dataclass(frozen=True, slots=True)
class AgentStatus:
    node: str
    connected: bool
    sources: list[ReadSourceStatus] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReadStatus:
    """The whole answer, or a page of it that `next` continues. `now` is in Unix seconds."""

    now: float = 0.0
    jobs: list[ReadJobStatus] = field(default_factory=list)
    notices: list[NoticeStatus] = field(default_factory=list)
    agents: list[AgentStatus] = field(default_factory=list)
    next: str | None = None

    def job(self, name: str) -> ReadJobStatus | None:
        return next((job for job in self.jobs if job.job == name), None)

    def connected(self) -> frozenset[str]:
        """Return the nodes whose agents have a stream."""
        return frozenset(agent.node for agent in self.agents if agent.connected)

    def known(self) -> frozenset[str]:
        """Return the nodes that have a source with a known state."""
        known = (agent for agent in self.agents if any(source.state != "unknown" for source in agent.sources))
        return frozenset(agent.node for agent in known)


async def fetch(session: aiohttp.ClientSession, url: str, token: str) -> ReadStatus:
    """Request the supervisor's status.

    Raises:
        StatusUnavailable: It cannot be reached, refuses, or its answer is invalid.
    """
    headers = {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    pages: list[ReadStatus] = []
    try:
        while not pages or pages[-1].next is not None:
            after = {"after": pages[-1].next} if pages and pages[-1].next is not None else {}
            async with session.get(f"{url}/v1/status", headers=headers, timeout=timeout, params=after) as answer:
                answer.raise_for_status()
                pages.append(msgspec.json.decode(await answer.read(), type=ReadStatus))
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
        raise StatusUnavailable(f"no status from {url}: {error!r}") from error
    return _joined(pages)


def _joined(pages: Sequence[ReadStatus]) -> ReadStatus:
    """Join the pages of a status. A large job spans several."""
    jobs: dict[str, ReadJobStatus] = {}
    for job in (job for page in pages for job in page.jobs):
        known = jobs.get(job.job)
        jobs[job.job] = job if known is None else _extended(known, job)
    return ReadStatus(
        now=pages[0].now,
        jobs=list(jobs.values()),
        notices=[notice for page in pages for notice in page.notices],
        agents=[agent for page in pages for agent in page.agents],
    )


def _extended(job: ReadJobStatus, more: ReadJobStatus) -> ReadJobStatus:
    return replace(
        job,
        hosts=job.hosts + more.hosts,
        workers=job.workers + more.workers,
        exclusions=job.exclusions + more.exclusions,
    )
