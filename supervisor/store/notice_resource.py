"""A ReclaimNotice as it is written and read, and how the domain's notice becomes one and comes back."""

from datetime import datetime

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata
from supervisor.domain.ids import Source
from supervisor.domain.notice import NoticeState, ReclaimNotice, Subject, SubjectKind
from supervisor.store.resources import GROUP, VERSION, Body, Condition, instant, maybe, seconds, truth
from supervisor.store.sentences import sentence

NOTICES = Resource(group=GROUP, version=VERSION, kind="ReclaimNotice", plural="reclaimnotices", namespaced=False)


class SubjectBody(Body, frozen=True, kw_only=True):
    """See `Subject`."""

    kind: SubjectKind
    name: str
    uid: str


class NoticeSpec(Body, frozen=True, kw_only=True):
    """Which notice it is."""

    source: str
    subject: SubjectBody
    episode: int


class NoticeStatus(Body, frozen=True, kw_only=True):
    """What is known of it; see `ReclaimNotice`."""

    epoch: int
    state: NoticeState
    first_seen: datetime
    deadline: datetime | None = None
    announced: str = ""
    message: str = ""
    session: int
    revision: int
    ended_at: datetime | None = None
    conditions: tuple[Condition, ...] = ()


class NoticeResource(Body, frozen=True, kw_only=True):
    """One ReclaimNotice."""

    metadata: Metadata
    spec: NoticeSpec
    status: NoticeStatus | None = None

    def value(self) -> ReclaimNotice | None:
        """As the domain says it; None where it was never finished."""
        spec, status = self.spec, self.status
        if status is None:
            return None
        return ReclaimNotice(
            source=Source(spec.source),
            subject=Subject(spec.subject.kind, spec.subject.name, spec.subject.uid),
            episode=spec.episode,
            state=status.state,
            first_seen=status.first_seen.timestamp(),
            deadline=seconds(status.deadline),
            announced=status.announced,
            message=status.message,
            session=status.session,
            revision=status.revision,
            ended_at=seconds(status.ended_at),
        )


def notice_spec(notice: ReclaimNotice) -> NoticeSpec:
    """Which notice it is."""
    subject = SubjectBody(kind=notice.subject.kind, name=notice.subject.name, uid=notice.subject.uid)
    return NoticeSpec(source=notice.source, subject=subject, episode=notice.episode)


def notice_status(notice: ReclaimNotice, epoch: int) -> NoticeStatus:
    """What is known of it."""
    ended_at = maybe(notice.ended_at)
    active = Condition(
        type="Active",
        status=truth(holds=notice.state is NoticeState.ACTIVE),
        reason="Announced" if notice.state is NoticeState.ACTIVE else notice.state.capitalize(),
        message=sentence(notice),
        last_transition_time=ended_at or instant(notice.first_seen),
    )
    return NoticeStatus(
        epoch=epoch,
        state=notice.state,
        first_seen=instant(notice.first_seen),
        deadline=maybe(notice.deadline),
        announced=notice.announced,
        message=notice.message,
        session=notice.session,
        revision=notice.revision,
        ended_at=ended_at,
        conditions=(active,),
    )
