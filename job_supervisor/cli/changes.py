"""`status --watch`: what has changed from one look at the status to the next, one event a change."""

from collections.abc import Iterator

import msgspec

from job_supervisor.cli.status import Status, going, has_ended
from supervisor.observability.views import AgentView, JobView, NoticeView


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One change; `at` is Unix seconds. `subject` is `job/NAME`, `node/NAME`, `pod/NAMESPACE/NAME` or `agent/NODE`."""

    at: float
    subject: str
    what: str
    text: str


def changes(before: Status | None, after: Status) -> Iterator[Event]:
    """Yields what has changed; at the first look, all jobs, active notices and silent agents."""
    yield from _notices(before, after)
    yield from _jobs(before, after)
    yield from _agents(before, after)


def _jobs(before: Status | None, after: Status) -> Iterator[Event]:
    known = {} if before is None else {job.job: job for job in before.jobs}
    for job in after.jobs:
        old = known.pop(job.job, None)
        if old is None or _seen(old) != _seen(job):
            yield Event(at=after.now, subject=f"job/{job.job}", what=job.phase, text=job.reason)
    for name in known:
        yield Event(at=after.now, subject=f"job/{name}", what="forgotten", text="The supervisor no longer knows it.")


def _seen(job: JobView) -> tuple[object, ...]:
    return job.phase, job.reason, job.run, tuple(job.exclusions)


def _notices(before: Status | None, after: Status) -> Iterator[Event]:
    old = {} if before is None else before.by_id
    for key, notice in after.by_id.items():
        known = old.get(key)
        is_new = notice.active and (known is None or not known.active)
        is_over = known is not None and known.active and not notice.active
        if is_new or is_over:
            subject = f"{notice.kind}/{notice.subject}"
            what, text = ("noticed", _announced(notice)) if is_new else (notice.state.value, has_ended(notice))
            yield Event(at=after.now, subject=subject, what=what, text=text)


def _announced(notice: NoticeView) -> str:
    sentence = going(notice)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _agents(before: Status | None, after: Status) -> Iterator[Event]:
    old = {agent.node: agent for agent in (before.agents if before is not None else None) or ()}
    for agent in after.agents or ():
        known = old.get(agent.node)
        if _state(agent) != ("connected" if known is None and before is None else _state(known)):
            yield Event(at=after.now, subject=f"agent/{agent.node}", what=_state(agent), text=_MEANING[_state(agent)])


_MEANING = {
    "connected": "The agent is connected.",
    "reclaimed": "The agent is silent, as its node was reclaimed.",
    "unknown": "The agent is silent: nobody can say whether the node will be reclaimed.",
}


def _state(agent: AgentView | None) -> str:
    if agent is None:
        return ""
    if agent.connected:
        return "connected"
    return "reclaimed" if agent.reclaimed else "unknown"
