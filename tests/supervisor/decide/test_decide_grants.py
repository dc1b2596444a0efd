"""Grants: which job may take which hosts."""

from dataclasses import replace

from supervisor.decide.grant import grants, held
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, Result, SupervisedJob
from tests.supervisor.decide.decide_builders import (
    T0,
    decide,
    first,
    hosts,
    obeyed,
    observing,
    running_job,
    seeing,
    spec,
    suspended_job,
    waiting_job,
)

A, B = JobName("a"), JobName("b")


def _pair(least: int = 4, most: int = 6) -> list[SupervisedJob]:
    """Two suspended jobs that could use the same hosts; a has waited longer."""
    asked, listed = spec(least, most), first(8)
    return [
        suspended_job(asked, listed, since=T0 + 1, name="b"),
        suspended_job(asked, listed, since=T0, name="a"),
    ]


def test_capacity_for_one_resumes_one() -> None:
    """The job that has waited longer gets all it asked for, the other nothing: never half each."""
    assert grants(_pair(), first(7)) == {A: first(6)}


def test_capacity_for_two_resumes_both() -> None:
    assert grants(_pair(4, 4), first(8)) == {A: first(4), B: hosts(5, 6, 7, 8)}


def test_a_job_that_is_being_ended_leaves_its_turn_to_others() -> None:
    later, earlier = _pair()
    assert grants([later, observing(earlier, ending=True)], first(7)) == {B: first(6)}
    assert grants([observing(running_job(spec(3, 6), 4), ending=True)], hosts(5, 6)) == {}


def test_capacity_for_neither_is_given_to_neither() -> None:
    assert grants(_pair(), first(3)) == {}


def test_both_resume_in_the_end() -> None:
    """Capacity for one: one resumes, and the other when that one is over. Nothing deadlocks."""
    jobs = {job.name: job for job in _pair(6, 6)}
    started = []
    for at in range(100):
        granted = grants(jobs.values(), first(6))
        for name, job in jobs.items():
            job = obeyed(decide(job, seeing({}, granted.get(name, frozenset())), at).job)  # noqa: PLW2901  # It moves on.
            jobs[name] = job
            if job.decision.phase is Phase.RUNNING and name not in started:
                started.append(name)
                jobs[name] = observing(job, running=False, exit_code=0, result=Result.SUCCEEDED)
    assert started == [A, B]


def test_a_small_job_uses_what_is_too_little_for_a_large_one() -> None:
    """Hosts do not lie idle for a job that cannot start on them."""
    large = suspended_job(spec(6, 6), first(6), since=T0, name="a")
    small = suspended_job(spec(2, 2), first(6), since=T0 + 1, name="b")
    assert grants([large, small], first(5)) == {B: hosts(1, 2)}


def test_no_host_of_another_job_is_given_away() -> None:
    runs = running_job(spec(3, 6), 4, name="a")
    waits = waiting_job(spec(2, 4), first(6), name="b")
    assert grants([runs, waits], first(6)) == {B: hosts(5, 6)}
    ending = replace(runs, decision=replace(runs.decision, phase=Phase.SUSPENDED))
    assert grants([ending, waits], first(6)) == {B: hosts(5, 6)}


def test_only_available_and_listed_hosts_are_given() -> None:
    """A host must be known to be well, and the operator must have listed it for the job."""
    job = waiting_job(spec(1, 6), hosts(1, 2, 3))
    assert grants([job], hosts(2, 3, 4)) == {job.name: hosts(2, 3)}


def test_a_running_job_grows_to_its_maximum() -> None:
    job = observing(running_job(spec(3, 6), 5), hosts=first(9))
    assert grants([job], first(9)) == {job.name: hosts(6)}
    excluding = replace(job, decision=replace(job.decision, exclusions=hosts(1, 2)))
    assert grants([excluding], first(9), noticed=hosts(1, 2)) == {job.name: hosts(6, 7, 8)}
    assert grants([observing(running_job(), hosts=first(9))], first(9)) == {}


def test_a_running_job_does_not_grow_on_what_a_waiting_one_needs() -> None:
    """Starting is worth more than growing, also while the capacity for a start is still coming."""
    runs = observing(running_job(spec(3, 8), 4, name="a"), hosts=first(9))
    waits = waiting_job(spec(4, 4), hosts(5, 6, 7, 8), name="b")
    assert grants([runs, waits], hosts(5, 6, 9)) == {A: hosts(9)}


def test_only_running_jobs_grow() -> None:
    """Neither a change of the list under way nor a resume is disturbed."""
    for phase in (Phase.SHRINKING, Phase.STOPPING, Phase.RESUMING, Phase.TIMED_OUT):
        job = observing(running_job(spec(3, 8), 4), hosts=first(9))
        assert grants([replace(job, decision=replace(job.decision, phase=phase))], first(9)) == {}


def test_nothing_is_kept_for_a_launcher_that_cannot_start() -> None:
    """A job whose launcher's host is to be reclaimed does not keep others from resuming."""
    stuck, other = reversed(_pair())
    stuck = replace(stuck, spec=replace(stuck.spec, launcher_host=Host("n9")))
    assert grants([stuck, other], first(6)) == {A: first(6)}
    assert grants([stuck, other], first(6), {Host("n9")}) == {B: first(6)}


def test_a_job_that_is_over_holds_its_hosts_until_its_command_has_ended() -> None:
    """The next job must not meet the last processes of the one before."""
    over = observing(running_job(name="a"), result=Result.TERMINATED)
    assert held(over) == first(6)
    assert held(observing(over, running=False)) == hosts()
    assert grants([observing(over, running=False)], first(6)) == {}


def test_a_waiting_job_with_something_running_gets_nothing() -> None:
    first_in_line, other = reversed(_pair())
    assert grants([observing(first_in_line, running=True), other], first(6)) == {B: first(6)}
