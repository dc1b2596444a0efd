"""What happened within a moment becomes one message for each job, and a summary."""

import pytest

from supervisor.observability.notifications.message import (
    MAX_JOBS,
    SUMMARY,
    Choice,
    NotificationKind,
    NotificationMessage,
    NotificationSeverity,
    Occurrence,
    Origin,
    messages,
)
from tests.supervisor.observability.notifications.notifications_world import occurrence

EVERYTHING = Choice(frozenset(NotificationKind))
ORIGIN = Origin("prod", "https://status.example/")


def told(*occurrences: Occurrence, choice: Choice = EVERYTHING) -> list[NotificationMessage]:
    return list(messages(occurrences, choice, ORIGIN))


def test_one_job_is_one_message_with_a_link_and_a_command() -> None:
    (message,) = told(occurrence(NotificationKind.SHRUNK), occurrence(NotificationKind.SUSPENDED, number=2))
    assert message.title == "[prod] Job team/trainingjob.bert is suspended"
    assert [each.kind for each in message.events] == [NotificationKind.SHRUNK, NotificationKind.SUSPENDED]
    assert (message.count, message.namespace, message.severity) == (2, "team", NotificationSeverity.WARNING)
    assert message.link == "https://status.example/status/jobs/team/trainingjob.bert"
    assert message.command == "job-supervisor explain team/trainingjob.bert"


def test_two_hundred_notices_and_five_jobs_are_six_messages() -> None:
    jobs = [occurrence(NotificationKind.SHRUNK, f"team/trainingjob.j{number}") for number in range(5)]
    notices = [occurrence(NotificationKind.NOTICE, None, number=number) for number in range(200)]
    found = told(*jobs, *notices)
    assert len(found) == 6
    assert (found[-1].title, found[-1].count, len(found[-1].events)) == ("[prod] 200 reclaim notices", 200, 20)


def test_more_jobs_than_anybody_reads_are_summed_up() -> None:
    """The most urgent ones have messages of their own."""
    jobs = [occurrence(NotificationKind.SHRUNK, f"j{number}") for number in range(MAX_JOBS + 2)]
    found = told(*jobs, occurrence(NotificationKind.LATE_STOP, "late"))
    assert (len(found), found[0].job, found[-1].kind) == (MAX_JOBS + 1, "late", SUMMARY)
    assert found[-1].title == "[prod] 3 more jobs (3 shrunk)"


def test_trouble_is_the_headline_though_more_follows() -> None:
    (message,) = told(occurrence(NotificationKind.LATE_STOP), occurrence(NotificationKind.SUSPENDED, number=2))
    assert (message.kind, message.severity) == (NotificationKind.LATE_STOP, NotificationSeverity.CRITICAL)


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        (Choice({NotificationKind.SUSPENDED}), 2),
        (Choice({NotificationKind.FINISHED}), 0),
        (Choice(frozenset(NotificationKind), {"team"}), 1),
        (EVERYTHING, 3),
    ],
)
def test_a_target_hears_what_it_has_chosen(choice: Choice, count: int) -> None:
    """Notices on nodes have no namespace: who chose some does not hear of them."""
    found = told(
        occurrence(), occurrence(job="other/mpijob.x"), occurrence(NotificationKind.NOTICE, None), choice=choice
    )
    assert len(found) == count


def test_drills_are_marked_unless_something_real_is_among_them() -> None:
    (drill,) = told(occurrence(drill=True))
    assert (drill.title, drill.drill, drill.severity) == (
        "Drill: [prod] Job team/trainingjob.bert is suspended",
        True,
        NotificationSeverity.INFO,
    )
    (mixed,) = told(occurrence(drill=True), occurrence(number=2))
    assert not mixed.drill


def test_a_repetition_has_the_same_id() -> None:
    assert told(occurrence())[0].id == told(occurrence())[0].id == occurrence().id
    assert told(occurrence(), occurrence(number=2))[0].id != occurrence().id
