"""A run with fewer hosts than the job asked for grows while it runs, where an operator can add some."""

from dataclasses import replace

import pytest

from supervisor.decide.policy import Policy
from supervisor.decide.situation import JobFacts
from supervisor.domain.ids import Host
from supervisor.domain.job import ELASTIC, Growth, Phase, SupervisedJob
from supervisor.domain.order import AddHosts
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    Step,
    answered,
    decide,
    first,
    hosts,
    notice,
    noticed,
    observing,
    running_job,
    seeing,
    spec,
)

DELAY = POLICY.growth_delay_seconds
LAST = POLICY.resume_timeout_seconds


def small(least: int = 2) -> SupervisedJob:
    """A job of six hosts that runs on three, all of which an operator has made."""
    return running_job(replace(spec(least, 6), capabilities=ELASTIC, launcher_host=Host("launcher")), 3)


def room(more: int, facts: JobFacts | None = None) -> JobFacts:
    return replace(facts or seeing(), more=more)


def asked(least: int = 2, more: int = 3) -> SupervisedJob:
    """The same once its operator is asked for more, which the launcher has confirmed; at T0 + DELAY."""
    job, _ = decide(small(least), room(more))
    job, _ = decide(job, room(more), at=DELAY)
    assert job.decision.growing is not None
    return observing(job, applied=job.decision.generation)


def adds(step: Step) -> list[AddHosts]:
    return [each for each in step.plan.actions if isinstance(each, AddHosts)]


def test_it_grows_once_room_has_lasted() -> None:
    """Not a moment earlier, as each growth pauses every process; the reason says what it asks for."""
    job, planned = decide(small(), room(3), at=1)
    assert (job.decision.growth, planned.wake_at) == (None, T0 + 1 + DELAY)
    early, _ = decide(job, room(3), at=0.9 + DELAY)
    assert early.decision == job.decision
    job, planned = decide(job, room(3), at=1 + DELAY)
    assert job.decision.growing == Growth(workers=6, number=job.decision.generation, until=T0 + 1 + DELAY + LAST)
    assert job.decision.reason == "There is room again: asking for 6 of 6 requested hosts."
    assert planned.wake_at == T0 + 1 + DELAY + LAST


def test_room_that_comes_and_goes_is_not_used() -> None:
    job, _ = decide(small(), room(3))
    job, _ = decide(job, room(0), at=DELAY / 2)
    job, _ = decide(job, room(3), at=DELAY)
    job, _ = decide(job, room(3), at=DELAY * 1.4)
    assert job.decision.growth is None
    job, _ = decide(job, room(3), at=DELAY * 2)
    assert job.decision.growing is not None


def test_it_takes_what_there_is_at_the_end() -> None:
    job, _ = decide(small(), room(3))
    job, _ = decide(job, room(1), at=DELAY)
    assert job.decision.growing is not None
    assert job.decision.growing.workers == 4


def test_the_operator_is_asked_once_the_launcher_has_our_list() -> None:
    """A host that is listed and cannot be reached would be the end of all ranks."""
    job, _ = decide(small(), room(3))
    growing = decide(job, room(3), at=DELAY)
    assert adds(growing) == []
    job = observing(growing.job, applied=growing.job.decision.generation)
    number = job.decision.generation
    assert adds(decide(job, seeing(), at=DELAY + 1)) == [AddHosts(1, 6, number, T0 + DELAY + LAST)]


def test_hosts_that_join_end_the_growth() -> None:
    """They are the job's at once; some of them alone are not all."""
    job, _ = decide(observing(asked(), hosts=first(5)), seeing(), at=DELAY + 5)
    assert job.decision.growing is not None
    assert job.decision.hosts == first(5)
    step = decide(observing(job, hosts=first(6)), seeing(), at=DELAY + 9)
    assert (step.job.decision.growth, step.job.decision.hosts, adds(step)) == (None, first(6), [])
    assert step.job.decision.reason == "Continuing with 6 of 6 requested hosts."


def test_a_growth_that_fails_is_tried_later_and_later() -> None:
    """The run goes on as before; a growth that works forgives all that failed."""
    job, at = asked(), DELAY
    for failed in range(1, 8):
        at += LAST
        job, planned = decide(job, room(3), at=at)
        pause = DELAY * 2 ** min(failed, 5)
        assert (job.decision.phase, job.decision.growing) == (Phase.RUNNING, None)
        assert job.decision.growth is not None
        assert (job.decision.growth.failed, job.decision.growth.until) == (failed, T0 + at + pause)
        assert planned.wake_at == T0 + at + pause
        job, _ = decide(job, room(3), at=at + pause - 1)
        assert job.decision.growing is None
        at += pause
        job, _ = decide(job, room(3), at=at)
        assert job.decision.growing is not None
    job, _ = decide(observing(job, hosts=first(6)), room(0), at=at + 1)
    assert job.decision.growth is None


def test_a_job_that_shrinks_does_not_grow() -> None:
    """Nor one from which hosts are left out: what is there has to be in place first."""
    seen = seeing(noticed(notice(1)))
    job, _ = decide(small(), room(3, seen), at=0)
    job, _ = decide(job, room(3, seen), at=POLICY.window_seconds)
    assert job.decision.phase is Phase.SHRINKING
    job = observing(job, applied=job.decision.generation)
    job, _ = decide(job, room(3, seen), at=2)
    job, _ = decide(job, room(3, seen), at=2 + 2 * DELAY)
    assert (job.decision.phase, job.decision.growth, job.decision.capacity_since) == (Phase.RUNNING, None, None)


def test_a_notice_in_the_middle_of_a_growth_shrinks_as_ever() -> None:
    """Nobody is asked for more meanwhile, and the growth ends with its hosts or with its time."""
    seen = seeing(noticed(notice(1)))
    job, _ = decide(asked(), seen, at=DELAY)
    step = decide(job, seen, at=DELAY + POLICY.window_seconds)
    assert (step.job.decision.phase, step.job.decision.exclusions) == (Phase.SHRINKING, hosts(1))
    assert adds(step) == []
    job = observing(step.job, applied=step.job.decision.generation)
    job, _ = decide(job, seen, at=DELAY + 3)
    assert job.decision.growing is not None
    job, _ = decide(observing(job, hosts=first(6)), seen, at=DELAY + 4)
    assert (job.decision.growth, job.decision.exclusions) == (None, hosts(1))


def test_a_new_host_that_is_doomed_at_once_is_left_out() -> None:
    seen = seeing(noticed(notice(6)))
    job, _ = decide(observing(asked(), hosts=first(6)), seen, at=DELAY + 5)
    job, _ = decide(job, seen, at=DELAY + 5 + POLICY.window_seconds)
    assert job.decision.exclusions == hosts(6)


def test_a_stop_in_the_middle_of_a_growth_ends_it() -> None:
    seen = seeing(noticed(notice(1), notice(2)))
    step = decide(asked(), seen, at=DELAY + 1)
    assert (step.job.decision.phase, step.job.decision.growth, adds(step)) == (Phase.STOPPING, None, [])
    job, _ = decide(answered(step.job), seeing(), at=DELAY + 2)
    assert (job.decision.phase, job.decision.growth) == (Phase.SUSPENDED, None)


@pytest.mark.parametrize("seen", [True, False], ids=["seen-between", "unseen"])
def test_a_run_that_its_operator_starts_again_begins_without_it(
    seen: bool,  # noqa: FBT001 - a column of the table
) -> None:
    job = asked()
    if seen:
        job, _ = decide(observing(job, running=False, exit_code=1), seeing(), at=DELAY + 1)
        assert job.decision.phase is Phase.WAITING
    job, _ = decide(observing(job, running=True, exit_code=None, run=2, hosts=first(3)), seeing(), at=DELAY + 20)
    assert (job.decision.phase, job.decision.run, job.decision.growth) == (Phase.RUNNING, 2, None)


def test_nothing_grows_where_that_is_switched_off() -> None:
    """A delay of 0 is never."""
    never = Policy(growth_delay_seconds=0)
    job, planned = decide(small(), room(3), policy=never)
    job, planned = decide(job, room(3), at=1000, policy=never)
    assert (job.decision.growth, planned.wake_at) == (None, None)
