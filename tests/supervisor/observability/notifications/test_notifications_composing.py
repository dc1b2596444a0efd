"""What happened within a moment becomes one message for each job, and a summary."""

import pytest

from supervisor.observability.notifications.composing import MAX_JOBS, Choice, Origin, messages
from supervisor.observability.notifications.message import SUMMARY, Happening, Kind, Message, Severity
from tests.supervisor.observability.notifications.notifications_world import happening

EVERYTHING = Choice(frozenset(Kind))
ORIGIN = Origin("prod", "https://status.example/")


def told(*happenings: Happening, choice: Choice = EVERYTHING) -> list[Message]:
    return list(messages(happenings, choice, ORIGIN))


def test_one_job_is_one_message_with_a_link_and_a_command() -> None:
    (message,) = told(happening(Kind.SHRUNK), happening(Kind.SUSPENDED, number=2))
    assert message.title == "[prod] Job team/trainingjob.bert is suspended"
    assert [each.kind for each in message.events] == [Kind.SHRUNK, Kind.SUSPENDED]
    assert (message.count, message.namespace, message.severity) == (2, "team", Severity.WARNING)
    assert message.link == "https://status.example/status/jobs/team/trainingjob.bert"
    assert message.command == "job-supervisor explain team/trainingjob.bert"


def test_two_hundred_notices_and_five_jobs_are_six_messages() -> None:
    jobs = [happening(Kind.SHRUNK, f"team/trainingjob.j{number}") for number in range(5)]
    notices = [happening(Kind.NOTICE, None, number=number) for number in range(200)]
    found = told(*jobs, *notices)
    assert len(found) == 6
    assert (found[-1].title, found[-1].count, len(found[-1].events)) == ("[prod] 200 reclaim notices", 200, 20)


def test_more_jobs_than_anybody_reads_are_summed_up() -> None:
    """The most urgent ones have messages of their own."""
    jobs = [happening(Kind.SHRUNK, f"j{number}") for number in range(MAX_JOBS + 2)]
    found = told(*jobs, happening(Kind.LATE_STOP, "late"))
    assert (len(found), found[0].job, found[-1].kind) == (MAX_JOBS + 1, "late", SUMMARY)
    assert found[-1].title == "[prod] 3 more jobs (3 shrunk)"


def test_trouble_is_the_headline_though_more_follows() -> None:
    (message,) = told(happening(Kind.LATE_STOP), happening(Kind.SUSPENDED, number=2))
    assert (message.kind, message.severity) == (Kind.LATE_STOP, Severity.CRITICAL)


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        (Choice({Kind.SUSPENDED}), 2),
        (Choice({Kind.FINISHED}), 0),
        (Choice(frozenset(Kind), {"team"}), 1),
        (EVERYTHING, 3),
    ],
)
def test_a_target_hears_what_it_has_chosen(choice: Choice, count: int) -> None:
    """Notices on nodes have no namespace: who chose some does not hear of them."""
    found = told(happening(), happening(job="other/mpijob.x"), happening(Kind.NOTICE, None), choice=choice)
    assert len(found) == count


def test_drills_are_marked_unless_something_real_is_among_them() -> None:
    (drill,) = told(happening(drill=True))
    assert (drill.title, drill.drill, drill.severity) == (
        "Drill: [prod] Job team/trainingjob.bert is suspended",
        True,
        Severity.INFO,
    )
    (mixed,) = told(happening(drill=True), happening(number=2))
    assert not mixed.drill


def test_a_repetition_has_the_same_id() -> None:
    assert told(happening())[0].id == told(happening())[0].id == happening().id
    assert told(happening(), happening(number=2))[0].id != happening().id
