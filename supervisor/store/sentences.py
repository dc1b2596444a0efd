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
    if notice.drains:
        return _drained(subject, notice)
    return _announced(subject, notice) if notice.state is NoticeState.ACTIVE else _ended(subject, notice)


def _ended(subject: str, notice: ReclaimNotice) -> str:
    match notice.state:
        case NoticeState.WITHDRAWN:
            return f"{subject} will not be reclaimed after all, says {notice.source}."
        case NoticeState.EXPIRED if notice.notice_class is NoticeClass.HINT:
            return f"{subject} is not watched any more; {notice.source} had announced no end."
        case NoticeState.GONE:
            return f"{subject} is gone, as {notice.source} had announced."
        case _:
            return f"{subject} is still there, though {notice.source} had announced its end."


def _drained(subject: str, notice: ReclaimNotice) -> str:
    if notice.state is not NoticeState.ACTIVE:
        return f"{subject} is not drained any more."
    empty = "" if notice.deadline is None else f" It has to be empty at {_utc(notice.deadline)}."
    return f"{subject} is drained by {notice.message.rstrip('.') or 'an operator'}.{empty}"


def _utc(at: float) -> str:
    return f"{instant_of(at):%Y-%m-%dT%H:%M:%SZ}"


def _announced(subject: str, notice: ReclaimNotice) -> str:
    when = ""
    if notice.deadline is not None:
        when = f" at {_utc(notice.deadline)}"
    words = f': "{notice.message}"' if notice.message else "."
    return f"{subject} {_VERBS[notice.notice_class]} reclaimed{when}, says {notice.source}{words}"
