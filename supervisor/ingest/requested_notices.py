"""Notices that an operator announces over HTTP: of one source, on the nodes of known agents."""

from collections.abc import Iterator
from dataclasses import dataclass

from servicekit.bounds import instant_of
from servicekit.clock import Clock
from supervisor.decide.notices import apply_report
from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host, NoticeId, Source
from supervisor.domain.notice import (
    Announcement,
    NoticeState,
    ReclaimNotice,
    Report,
    Subject,
    SubjectKind,
    notice_id,
)
from supervisor.ingest.agent_registry import AgentRegistry
from supervisor.ingest.errors import UnknownNodeError
from supervisor.store.interface import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedNotices:
    """The notices of `source`, which no agent may report."""

    source: Source
    store: Store
    agents: AgentRegistry
    policy: Policy
    clock: Clock

    async def announce(self, node: str, lead: float, message: str) -> tuple[NoticeId, float]:
        """Announces a notice, or changes the present one; returns its id and the seconds that are left.

        Raises:
            UnknownNodeError: No agent of that node is known.
            StoreUnavailableError: It could not be stored.
        """
        agent = self.agents.all().get(Host(node))
        if agent is None:
            raise UnknownNodeError(f"no agent of a node {node} is known")
        subject = Subject(SubjectKind.NODE, node, agent.uid)
        await self._say(subject, Announcement.ACTIVE, message, lead)
        return notice_id(self.source, subject), lead

    async def withdraw(self, node: str | None) -> list[ReclaimNotice]:
        """Withdraws the active notices on a node, or with None on all nodes; returns them as they were."""
        ended = [notice for notice in self._active() if node in (None, notice.subject.name)]
        for notice in ended:
            await self._say(notice.subject, Announcement.WITHDRAWN, notice.message)
        return ended

    def _active(self) -> Iterator[ReclaimNotice]:
        known = self.store.snapshot().notices.values()
        return (each for each in known if each.source == self.source and each.state is NoticeState.ACTIVE)

    async def _say(
        self, subject: Subject, announcement: Announcement, message: str, lead: float | None = None
    ) -> ReclaimNotice | None:
        def change(known: ReclaimNotice | None) -> ReclaimNotice | None:
            now = self.clock.now()
            report = Report(
                source=self.source,
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

        return await self.store.put_notice(notice_id(self.source, subject), change)
