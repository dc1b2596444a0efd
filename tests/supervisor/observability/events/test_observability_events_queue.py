"""The event queue orders, replaces and bounds Events."""

from dataclasses import replace

from supervisor.domain.job import Phase
from supervisor.domain.notice import NoticeState
from supervisor.observability.events.api import PendingEvent, SendResult
from supervisor.observability.events.recorder import EventQueue
from supervisor.observability.events.rules import OF_JOBS, OF_NOTICES, EventDraft, Priority
from tests.supervisor.decide.decide_builders import T0
from tests.supervisor.observability.events.observability_events import JOB, pod


def draft(number: int = 1, note: str = "So.", priority: Priority = Priority.POD) -> EventDraft:
    reason = OF_NOTICES[NoticeState.ACTIVE]
    return EventDraft(regarding=pod(number), related=None, reason=reason, note=note, at=T0, priority=priority)


def test_jobs_come_first_and_then_whoever_was_first() -> None:
    waiting = EventQueue(9)
    job = replace(draft(), regarding=JOB, reason=OF_JOBS[Phase.STOPPING], priority=Priority.JOB)
    for each in (draft(1), draft(2), job):
        assert waiting.put(each) is None
    order = []
    while (due := waiting.take()) is not None:
        order.append(due.draft.regarding)
    assert not waiting
    assert order == [JOB, pod(1), pod(2)]


def test_the_latest_of_a_topic_takes_the_place_of_what_waits() -> None:
    waiting = EventQueue(9)
    waiting.put(draft(1))
    waiting.put(draft(2))
    assert waiting.put(draft(1)) is SendResult.AGGREGATED
    assert waiting.take() == PendingEvent(draft(1), 2)
    assert waiting.put(draft(2, "Otherwise.")) is SendResult.AGGREGATED
    assert waiting.take() == PendingEvent(draft(2, "Otherwise."), 1)
    assert waiting.take() is None


def test_what_could_not_be_said_comes_first_again() -> None:
    """Unless something later waits in its place; the same is then said for both."""
    waiting = EventQueue(9)
    waiting.put(draft(1))
    waiting.put(draft(2))
    first = waiting.take()
    assert first == PendingEvent(draft(1))
    assert waiting.give_back(first) is None
    assert waiting.take() == first
    waiting.put(draft(1))
    assert waiting.give_back(first) is SendResult.AGGREGATED
    assert [waiting.take(), waiting.take()] == [PendingEvent(draft(2)), PendingEvent(draft(1), 2)]
    waiting.put(draft(1, "Otherwise."))
    assert waiting.give_back(first) is SendResult.AGGREGATED
    assert waiting.take() == PendingEvent(draft(1, "Otherwise."))


def test_of_too_much_the_oldest_is_dropped() -> None:
    waiting = EventQueue(2)
    outcomes = [waiting.put(draft(number)) for number in range(4)]
    assert outcomes == [None, None, SendResult.DROPPED, SendResult.DROPPED]
    assert waiting.put(draft(9, priority=Priority.NOTICE)) is None
    assert waiting.take() == PendingEvent(draft(2))
