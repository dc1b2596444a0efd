"""Carries out what people ask for, by changes of the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from servicekit.bounds import instant_of
from servicekit.clock import Clock
from supervisor.decide.notices import apply_report
from supervisor.decide.policy import Policy
from supervisor.decide.registration import with_request
from supervisor.domain import notice as notices
from supervisor.domain.asking import Asked, DrainNode, HoldDrill, SteerJob
from supervisor.domain.ids import Host, Source
from supervisor.domain.job import UserRequest
from supervisor.identity.tokens import Operator, Reader
from supervisor.ingest.agent_registry import AgentRegistry
from supervisor.ingest.errors import DeniedError, UnknownNodeError
from supervisor.store.interface import Store

_log = structlog.get_logger()


def signed(by: str, reason: str) -> str:
    """Returns the text that says who has asked for something, and why."""
    return f"{by}: {reason}" if reason else by


class Steering(Protocol):
    """Decides who may ask for what, and carries it out."""

    async def permit(self, who: Reader, asked: Asked) -> None:
        """Returns if that person may ask for it.

        Raises:
            DeniedError: The person may not; the message says why.
            AuthenticationUnavailableError: That cannot be known at present.
        """

    async def carry_out(self, by: str, asked: Asked) -> Sequence[notices.Subject]:
        """Carries out what somebody has asked for, and has been permitted; returns whose notices it has changed.

        Raises:
            UnknownNodeError: No agent of that node is known.
            UnknownJobError, ClusterJobError, JobIsOverError, JobEndsError: See `with_request`.
            StoreUnavailableError: It could not be stored.
            NotTakenError: The cluster does not take it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSteering:
    """Implements `Steering` for operators: what they ask for is stored, with a job or as a notice of its own source.

    A drill ends at its deadline at the latest, a drain stands until somebody ends it.
    """

    store: Store
    agents: AgentRegistry
    policy: Policy
    clock: Clock

    async def permit(self, who: Reader, asked: Asked) -> None:  # noqa: ARG002 - the same for everything
        if not isinstance(who, Operator):
            raise DeniedError("This needs the token of an operator.")

    async def carry_out(self, by: str, asked: Asked) -> Sequence[notices.Subject]:
        match asked:
            case SteerJob():
                await self._steer(by, asked)
                return []
            case HoldDrill(node=node, lead=lead):
                if node is None or lead is None:
                    return await self._withdraw(notices.SIMULATED, node, by)
                return [await self._announce(notices.SIMULATED, node, lead, notices.explained(by), by)]
            case DrainNode(node=node, lead=lead):
                if lead is None:
                    return await self._withdraw(notices.OPERATOR, node, by)
                return [await self._announce(notices.OPERATOR, node, lead, signed(by, asked.reason), by)]

    async def _steer(self, by: str, asked: SteerJob) -> None:
        reason = asked.reason.strip().rstrip(".")
        request = None
        if asked.kind is not None:
            request = UserRequest(kind=asked.kind, by=by, reason=reason, at=self.clock.now())
        await self.store.put_job(asked.job, lambda known: with_request(known, request))
        what = "job.request_withdrawn" if asked.kind is None else "job.requested"
        _log.warning(what, job=asked.job, request=asked.kind, by=by, reason=reason)

    async def _announce(self, source: Source, node: Host, lead: float, message: str, by: str) -> notices.Subject:
        """Announces a notice on the node of a known agent, or changes the present one."""
        agent = self.agents.by_node.get(node)
        if agent is None:
            raise UnknownNodeError(f"no agent of a node {node} is known")
        subject = notices.Subject(notices.SubjectKind.NODE, node, agent.uid)
        await self._put(source, subject, notices.Announcement.ACTIVE, message, lead)
        _log.warning("notice.begun", source=source, subject=node, lead_seconds=lead, message=message, by=by)
        return subject

    async def _withdraw(self, source: Source, node: Host | None, by: str) -> Sequence[notices.Subject]:
        """Withdraws the active notices on a node, or on all nodes (None)."""
        ended = [
            notice
            for notice in self.store.snapshot().notices.values()
            if notice.source == source
            and notice.state is notices.NoticeState.ACTIVE
            and node in (None, notice.subject.name)
        ]
        for notice in ended:
            await self._put(source, notice.subject, notices.Announcement.WITHDRAWN, notice.message)
            _log.warning("notice.ended", source=source, subject=notice.subject.name, by=by)
        return [notice.subject for notice in ended]

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
