"""Notices as sentences for people, in the conditions of resources and in Events."""

from servicekit.bounds import instant_of
from supervisor.domain.notice import NoticeClass, NoticeState, ReclaimNotice

_VERBS = {
    NoticeClass.SUDDEN: "will be",
    NoticeClass.SCHEDULED: "is scheduled to be",
    NoticeClass.HINT: "may be",
}


def sentence(notice: ReclaimNotice) -> str:
    """Returns what is known of a notice; instants are in UTC and cut to whole seconds."""
    subject = f"{notice.subject.kind.capitalize()} {notice.subject.name}"
    if notice.simulated:
        drill = _announced(subject, notice) if notice.state is NoticeState.ACTIVE else f"{subject} stays; it is over."
        return f"Drill: {drill}"
    match notice.state:
        case NoticeState.ACTIVE:
            return _announced(subject, notice)
        case NoticeState.WITHDRAWN:
            return f"{subject} will not be reclaimed after all, says {notice.source}."
        case NoticeState.EXPIRED if notice.notice_class is NoticeClass.HINT:
            return f"{subject} is not watched any more; {notice.source} had announced no end."
        case NoticeState.GONE:
            return f"{subject} is gone, as {notice.source} had announced."
        case NoticeState.EXPIRED:
            return f"{subject} is still there, though {notice.source} had announced its end."


def _announced(subject: str, notice: ReclaimNotice) -> str:
    when = ""
    if notice.deadline is not None:
        when = f" at {instant_of(notice.deadline):%Y-%m-%dT%H:%M:%SZ}"
    words = f': "{notice.message}"' if notice.message else "."
    return f"{subject} {_VERBS[notice.notice_class]} reclaimed{when}, says {notice.source}{words}"
