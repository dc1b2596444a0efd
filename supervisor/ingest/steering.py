"""Carries out what people ask for, by changes of the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from servicekit.bounds import instant_of
from servicekit.clock import Clock
from supervisor.decide.notices import apply_report
from supervisor.decide.policy import Policy
from supervisor.decide.registration import with_request
from supervisor.domain import notice as notices
from supervisor.domain.asking import (
    Asked,
    BeginDrain,
    BeginDrill,
    EndDrain,
    EndDrill,
    NotPermittedError,
    SteerJob,
    signed,
)
from supervisor.domain.ids import STANDALONE, Host, Source, kind_of
from supervisor.domain.job import UserRequest
from supervisor.identity.people import Carry
from supervisor.identity.tokens import Operator, Reader
from supervisor.ingest.agent_registry import AgentRegistry
from supervisor.ingest.errors import UnknownNodeError
from supervisor.store.interface import Store

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSteering:
    """Implements `Steering` for operators: what they ask for is stored, with a job or as a notice of its own source.

    A drill ends at its deadline at the latest, a drain stands until somebody ends it.
    """

    store: Store
    agents: AgentRegistry
    policy: Policy
    clock: Clock

    async def permit(self, who: Reader, asked: Asked) -> Carry:
        if not isinstance(who, Operator):
            raise NotPermittedError("This needs the token of an operator.")
        if isinstance(asked, SteerJob) and kind_of(asked.job) != STANDALONE:
            raise NotPermittedError(
                "This job is the cluster's: ask with kubectl or job-supervisor, with your own rights."
            )
        return partial(self.carry_out, who.name, asked)

    async def carry_out(self, by: str, asked: Asked) -> Sequence[notices.Subject]:
        """Carries out what an operator has asked for; returns the subjects of the notices that it has changed.

        Raises:
            UnknownNodeError: No agent of that node is known.
            UnknownJobError, ClusterJobError, JobIsOverError, JobEndsError: See `with_request`.
            StoreUnavailableError: It could not be stored.
        """
        match asked:
            case SteerJob():
                await self._steer(by, asked)
                return []
            case BeginDrill(node=node, lead=lead):
                subject = await self._announce(notices.SIMULATED, node, lead, notices.explained(by))
                notice = notices.notice_id(notices.SIMULATED, subject)
                _log.warning("drill.begun", notice=notice, subject=node, lead_seconds=lead, by=by)
                return [subject]
            case BeginDrain(node=node, lead=lead, reason=reason):
                subject = await self._announce(notices.OPERATOR, node, lead, signed(by, reason))
                notice = notices.notice_id(notices.OPERATOR, subject)
                _log.warning("drain.begun", notice=notice, subject=node, lead_seconds=lead, by=by, reason=reason)
                return [subject]
            case EndDrill(node=node):
                ended = await self._withdraw(notices.SIMULATED, node)
                for each in ended:
                    _log.warning("drill.ended", notice=each.id, subject=each.subject.name, by=by)
                return [each.subject for each in ended]
            case EndDrain(node=node):
                ended = await self._withdraw(notices.OPERATOR, node)
                for each in ended:
                    _log.warning("drain.ended", notice=each.id, subject=each.subject.name, by=by)
                return [each.subject for each in ended]

    async def _steer(self, by: str, asked: SteerJob) -> None:
        reason = asked.reason.strip().rstrip(".")
        request = None
        if asked.kind is not None:
            request = UserRequest(kind=asked.kind, by=by, reason=reason, at=self.clock.now())
        await self.store.put_job(asked.job, lambda known: with_request(known, request))
        if asked.kind is None:
            _log.warning("job.request_withdrawn", job=asked.job, by=by)
        else:
            _log.warning("job.requested", job=asked.job, request=asked.kind, by=by, reason=reason)

    async def _announce(self, source: Source, node: Host, lead: float, message: str) -> notices.Subject:
        """Announces a notice on the node of a known agent, or changes the present one."""
        agent = self.agents.by_node.get(node)
        if agent is None:
            raise UnknownNodeError(f"no agent of a node {node} is known")
        subject = notices.Subject(notices.SubjectKind.NODE, node, agent.uid)
        await self._put(source, subject, notices.Announcement.ACTIVE, message, lead)
        return subject

    async def _withdraw(self, source: Source, node: Host | None) -> Sequence[notices.ReclaimNotice]:
        """Withdraws the active notices on a node, or on all nodes (None); returns them as they were before."""
        ended = [
            notice
            for notice in self.store.snapshot().notices.values()
            if notice.source == source
            and notice.state is notices.NoticeState.ACTIVE
            and node in (None, notice.subject.name)
        ]
        for notice in ended:
            await self._put(source, notice.subject, notices.Announcement.WITHDRAWN, notice.message)
        return ended

    async def _put(
        self,
        source: Source,
        subject: notices.Subject,
        announcement: notices.Announcement,
        message: str,
        lead: float | None = None,
    ) -> None:
        def change(known: notices.ReclaimNotice | None) -> notices.ReclaimNotice | None:
            now = self.clock.now()
            report = notices.Report(
                source=source,
                subject=subject,
                # The last request wins: they cannot overtake each other.
                session=1 if known is None else known.session,
                revision=1 if known is None else known.revision + 1,
                announcement=announcement,
                seconds_left=lead,
                announced="" if lead is None else instant_of(now + lead).isoformat(),
                message=message,
            )
            return apply_report(known, report, now, self.policy)

        await self.store.put_notice(notices.notice_id(source, subject), change)
