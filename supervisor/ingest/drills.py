"""The endpoints for fire drills: notices that no cloud announced, with all their consequences."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import Meta

from servicekit.clock import Clock
from supervisor.decide.notices import apply_report
from supervisor.decide.policy import Policy
from supervisor.domain.drill import LONGEST_SECONDS, SHORTEST_SECONDS, explained
from supervisor.domain.ids import Host
from supervisor.domain.notice import (
    SIMULATED,
    Announcement,
    NoticeState,
    ReclaimNotice,
    Report,
    Subject,
    SubjectKind,
    notice_id,
)
from supervisor.identity.tokens import Operator
from supervisor.ingest.agent_registry import AgentRegistry
from supervisor.ingest.errors import UnknownNodeError
from supervisor.ingest.http import Authenticate, body, require_principal
from supervisor.store.interface import Store

_MAX_BYTES = 4096

Node = Annotated[str, Meta(min_length=1, max_length=253)]

_log = structlog.get_logger()


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """A request to start a drill."""

    node: Node
    lead_seconds: Annotated[float, Meta(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)]


class End(msgspec.Struct, frozen=True, kw_only=True):
    """A request to end the drill on one node, or all drills."""

    node: Node | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillEndpoints:
    """Endpoints for operators. A drill is stored like any notice, and ends at its deadline at the latest."""

    store: Store
    agents: AgentRegistry
    authenticate: Authenticate
    policy: Policy
    clock: Clock

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/drills", self.begin), web.post("/v1/drills/end", self.end)]

    async def begin(self, request: web.Request) -> web.Response:
        """Starts a drill on a node, or moves the deadline of its drill."""
        operator = await require_principal(Operator, request, self.authenticate)
        asked = await body(request, Drill, _MAX_BYTES)
        subject = self._subject(asked.node)
        notice = await self._say(subject, Announcement.ACTIVE, operator, asked.lead_seconds)
        _log.warning(
            "drill.begun",
            notice=notice_id(SIMULATED, subject),
            subject=subject.name,
            lead_seconds=asked.lead_seconds,
            by=operator.name,
        )
        return web.json_response({"notice": notice_id(SIMULATED, subject), "seconds_left": self._left(notice)})

    async def end(self, request: web.Request) -> web.Response:
        """Ends drills early; that there is none is not an error."""
        operator = await require_principal(Operator, request, self.authenticate)
        asked = await body(request, End, _MAX_BYTES)
        ended = [notice for notice in self._under_way() if asked.node in (None, notice.subject.name)]
        for notice in ended:
            await self._say(notice.subject, Announcement.WITHDRAWN, operator)
            _log.warning("drill.ended", notice=notice.id, subject=notice.subject.name, by=operator.name)
        return web.json_response({"ended": [notice.subject.name for notice in ended]})

    def _subject(self, node: str) -> Subject:
        agent = self.agents.all().get(Host(node))
        if agent is None:
            raise UnknownNodeError(f"no agent of a node {node} is known")
        return Subject(SubjectKind.NODE, node, agent.uid)

    def _under_way(self) -> list[ReclaimNotice]:
        known = self.store.snapshot().notices.values()
        return [each for each in known if each.simulated and each.state is NoticeState.ACTIVE]

    async def _say(
        self, subject: Subject, announcement: Announcement, operator: Operator, lead: float | None = None
    ) -> ReclaimNotice | None:
        def change(known: ReclaimNotice | None) -> ReclaimNotice | None:
            now = self.clock.now()
            report = Report(
                source=SIMULATED,
                subject=subject,
                # The last request wins: reports of drills cannot overtake each other.
                session=1 if known is None else known.session,
                revision=1 if known is None else known.revision + 1,
                announcement=announcement,
                seconds_left=lead,
                announced="" if lead is None else datetime.fromtimestamp(now + lead, UTC).isoformat(),
                message=explained(operator.name),
            )
            return apply_report(known, report, now, self.policy)

        return await self.store.put_notice(notice_id(SIMULATED, subject), change)

    def _left(self, notice: ReclaimNotice | None) -> float | None:
        return None if notice is None or notice.deadline is None else notice.deadline - self.clock.now()
