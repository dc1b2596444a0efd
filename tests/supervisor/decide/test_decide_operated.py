"""Jobs whose hosts an operator makes: it starts and restarts them, all its hosts are the job's, we stop and resume."""

from dataclasses import replace

import pytest

from supervisor.domain.ids import Host
from supervisor.domain.job import ELASTIC, Phase, Result, Spec, SupervisedJob
from supervisor.domain.order import EndJob, LeaveHosts, RemoveHosts, SetHostList, StartRun, StopProcesses, SuspendRun
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
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
    suspended_job,
    waiting_job,
)

LAUNCHER = Host("launcher")


def asked(least: int = 3, *, max_wait: float = 0.0) -> Spec:
    return replace(spec(least, max_wait=max_wait), capabilities=ELASTIC, launcher_host=LAUNCHER)


def going(least: int = 3) -> SupervisedJob:
    """A job that runs on n1 to n6."""
    return running_job(asked(least))


def test_a_job_that_waits_takes_no_capacity() -> None:
    job, planned = decide(waiting_job(asked()), seeing(granted=first(6)), at=10)
    assert (job.decision.phase, planned.actions) == (Phase.WAITING, ())


def test_a_start_of_the_operator_is_taken_over() -> None:
    waiting = observing(waiting_job(asked()), running=True, run=1, hosts=first(5))
    job, planned = decide(waiting, seeing())
    assert (job.decision.phase, job.decision.run, job.decision.hosts) == (Phase.RUNNING, 1, first(5))
    assert job.decision.waiting_since is None
    assert StartRun(1) not in planned.actions


def test_a_job_that_never_got_its_first_resources_times_out() -> None:
    waiting = waiting_job(asked(max_wait=600))
    job, planned = decide(waiting, seeing(), at=599)
    assert (job.decision.phase, planned.wake_at) == (Phase.WAITING, T0 + 600)
    job, planned = decide(waiting, seeing(), at=600)
    assert (job.decision.phase, planned.actions) == (Phase.TIMED_OUT, (EndJob(Result.TIMED_OUT),))


def test_what_the_operator_makes_and_deletes_is_the_jobs_at_once() -> None:
    """A replacement under a new name joins, a pod that is gone leaves, and nobody is asked to grant anything."""
    job, _ = decide(observing(going(), hosts=hosts(2, 3, 4, 5, 6, 7)), seeing())
    assert job.decision.hosts == hosts(2, 3, 4, 5, 6, 7)
    assert job.decision.reason == "n7 joined; now 6 hosts."


def test_a_pod_that_went_with_its_notice_was_reclaimed_after_all() -> None:
    """What is stored of the job still has it for a moment: its exclusion is not taken back, it leaves the job."""
    seen = seeing(noticed(notice(1), notice(2)))
    job, _ = decide(going(), seen, at=POLICY.window_seconds)
    job, _ = decide(observing(job, applied=job.decision.generation), seen, at=POLICY.window_seconds)
    reason = job.decision.reason
    job, _ = decide(job, replace(seeing(noticed(notice(2))), gone=hosts(1)), at=299)
    assert (job.decision.hosts, job.decision.exclusions) == (hosts(2, 3, 4, 5, 6), hosts(2))
    assert job.decision.reason == reason


def test_a_host_that_is_asked_to_end_does_not_come_back_when_its_notice_does() -> None:
    """As at the end of a drill: processes would be started on it in its last moment."""
    job, _ = decide(going(), seeing(noticed(notice(1), notice(2))), at=POLICY.window_seconds)
    job = observing(job, applied=job.decision.generation)
    job, _ = decide(job, seeing(noticed(notice(1), notice(2))), at=POLICY.window_seconds)
    job, planned = decide(job, replace(seeing(), terminating=hosts(1)), at=299)
    assert (job.decision.exclusions, job.decision.hosts) == (hosts(1), first(6))
    assert job.decision.reason == "n2 has no notice any more; now 5 hosts."
    assert not [each for each in planned.actions if isinstance(each, RemoveHosts)]
    job, _ = decide(observing(job, hosts=hosts(2, 3, 4, 5, 6)), seeing(), at=300)
    assert (job.decision.exclusions, job.decision.hosts) == (frozenset(), hosts(2, 3, 4, 5, 6))


def test_the_reason_agrees_with_the_workers_that_are_left() -> None:
    """Also where nobody had announced that one would go."""
    job, _ = decide(observing(going(), hosts=hosts(1, 3, 4, 5, 6)), seeing())
    assert job.decision.reason == "n2 is gone; now 5 hosts."
    job, _ = decide(observing(job, hosts=hosts(1, 4, 6, 7)), seeing())
    assert job.decision.reason == "n7 joined; now 4 hosts."


def test_a_replacement_on_a_noticed_node_is_left_out() -> None:
    seen = seeing(noticed(notice(7)))
    job, _ = decide(observing(going(), hosts=hosts(1, 2, 3, 4, 5, 7)), seen, at=POLICY.window_seconds)
    assert job.decision.exclusions == hosts(7)


def test_pods_of_excluded_hosts_are_deleted_at_the_last_moment() -> None:
    """Not before the launcher leaves them out, and not early enough for a replacement to get their machine."""
    seen = seeing(noticed(notice(1), notice(2, left=400)))
    job, planned = decide(going(), seen, at=POLICY.window_seconds)
    assert planned.actions == (SetHostList(first(6), hosts(1, 2)),)
    end = 300 - POLICY.leave_margin_seconds
    _, unconfirmed = decide(job, seen, at=end)
    assert RemoveHosts(1, hosts(1)) not in unconfirmed.actions
    job = observing(job, applied=job.decision.generation)
    settled, planned = decide(job, seen, at=end - 1)
    assert planned.wake_at == T0 + end
    assert planned.actions == (SetHostList(first(6), hosts(1, 2)), LeaveHosts(1, hosts(1)))
    settled = observing(settled, applied=settled.decision.generation)
    _, planned = decide(settled, seen, at=end)
    assert planned.actions == (LeaveHosts(1, hosts(1)), RemoveHosts(1, hosts(1)))


def test_processes_without_a_stream_are_told_to_leave_in_time() -> None:
    """Before their pods are deleted, and not before the launcher leaves them out: they would break the others."""
    seen = seeing(noticed(notice(1), notice(2, left=400)))
    job, _ = decide(going(), seen, at=POLICY.window_seconds)
    last = 300 - POLICY.margin_seconds
    _, unconfirmed = decide(job, seen, at=last)
    assert unconfirmed.actions == (SetHostList(first(6), hosts(1, 2)),)
    job = observing(job, applied=job.decision.generation)
    job, planned = decide(job, seen, at=last - 1)
    job = observing(job, applied=job.decision.generation)
    assert planned.wake_at == T0 + last
    assert LeaveHosts(1, hosts(1)) not in planned.actions
    _, planned = decide(job, seen, at=last)
    assert planned.actions == (LeaveHosts(1, hosts(1)),)
    assert planned.wake_at == T0 + 300 - POLICY.leave_margin_seconds


def test_standalone_hosts_are_never_deleted() -> None:
    seen = seeing(noticed(notice(1)))
    job, _ = decide(running_job(), seen, at=POLICY.window_seconds)
    _, planned = decide(observing(job, applied=job.decision.generation), seen, at=299)
    assert not [each for each in planned.actions if isinstance(each, LeaveHosts | RemoveHosts)]


@pytest.mark.parametrize("code", [255, None])
def test_a_run_that_ended_by_itself_is_its_operators_to_start_again(code: int | None) -> None:
    """The job waits as it did at first, for as long as it may; no STOP, nothing is suspended."""
    ended = observing(going(), running=False, exit_code=code, hosts=first(6))
    job, planned = decide(ended, seeing(), at=5)
    assert (job.decision.phase, job.decision.waiting_since, job.decision.hosts) == (Phase.WAITING, T0 + 5, frozenset())
    assert planned.actions == ()
    job, _ = decide(observing(job, running=True, run=2, hosts=first(6)), seeing(), at=20)
    assert (job.decision.phase, job.decision.run) == (Phase.RUNNING, 2)


def _without_launcher(max_wait: float = 0.0) -> SupervisedJob:
    """A job whose launcher has vanished, 10 s after `T0`, and whose operator does nothing about it."""
    job = running_job(asked(max_wait=max_wait))
    return observing(job, running=False, exit_code=-9, launcher_lost_since=T0 + 10)


def test_a_job_whose_launcher_is_lost_is_suspended_and_resumed() -> None:
    """Its operator would leave it so for ever; it has waited for no capacity, so it cannot time out."""
    grace = POLICY.launcher_grace_seconds
    job, planned = decide(_without_launcher(max_wait=4), seeing(), at=10)
    assert (job.decision.phase, planned.actions) == (Phase.WAITING, ())
    assert job.decision.reason == "The launcher of run 1 is gone; its operator may start another."
    job, planned = decide(job, seeing(), at=10 + grace - 0.1)
    assert (job.decision.phase, planned.wake_at) == (Phase.WAITING, T0 + 10 + grace)
    job, planned = decide(job, seeing(granted=first(6)), at=10 + grace)
    assert (job.decision.phase, job.decision.hosts) == (Phase.SUSPENDED, first(6))
    assert planned.actions == (SuspendRun(1),)
    job = observing(job, applied=job.decision.generation, launcher_lost_since=None)
    job, _ = decide(job, seeing(granted=first(6)), at=10 + grace + 0.5)
    job, planned = decide(job, seeing(granted=first(6)), at=10 + grace + 0.5 + POLICY.resume_delay_seconds)
    assert (job.decision.phase, job.decision.run) == (Phase.RESUMING, 2)


def test_a_job_whose_launcher_is_lost_again_and_again_pauses_longer_each_time() -> None:
    """It was suspended and resumed every seven seconds, for ever."""
    job, at = running_job(asked()), 0.0
    job = replace(job, decision=replace(job.decision, run_since=T0))
    grace, delay = POLICY.launcher_grace_seconds, POLICY.resume_delay_seconds
    for number, pause in enumerate((5, 10, 20), 1):
        lost = observing(job, running=False, exit_code=-9, launcher_lost_since=T0 + at + 1)
        job, _ = decide(decide(lost, seeing(), at + 1).job, seeing(), at := at + 1 + grace)
        assert (job.decision.phase, job.decision.short_runs) == (Phase.SUSPENDED, number)
        assert job.decision.reason.endswith(
            f"Run {number} was lost soon after it began: pausing {pause} s before the next one."
        )
        job = observing(job, applied=job.decision.generation, launcher_lost_since=None, exit_code=None)
        job, planned = decide(job, seeing(granted=first(6)), at)
        assert planned.wake_at == T0 + at + pause
        at += max(pause, delay)
        job, _ = decide(job, seeing(granted=first(6)), at)
        assert job.decision.phase is Phase.RESUMING
        job, _ = decide(observing(job, running=True, run=number + 1), seeing(), at)
        assert job.decision.phase is Phase.RUNNING


def test_an_operator_that_starts_another_launcher_is_left_alone() -> None:
    job, _ = decide(_without_launcher(), seeing(), at=10)
    again, planned = decide(observing(job, running=True, run=2, launcher_lost_since=None), seeing(), at=14)
    assert (again.decision.phase, again.decision.run) == (Phase.RUNNING, 2)
    begun, planned = decide(observing(job, launcher_lost_since=None), seeing(), at=100)
    assert (begun.decision.phase, planned.actions) == (Phase.WAITING, ())


def test_a_job_that_is_found_without_its_launcher_is_suspended_too() -> None:
    found = observing(waiting_job(asked(max_wait=1)), launcher_lost_since=T0)
    job, planned = decide(found, seeing(), at=POLICY.launcher_grace_seconds)
    assert (job.decision.phase, planned.actions) == (Phase.SUSPENDED, (SuspendRun(0),))


def test_a_run_that_succeeded_waits_for_its_operators_word() -> None:
    job, planned = decide(observing(going(), running=False, exit_code=0), seeing())
    assert (job.decision.phase, planned.actions) == (Phase.RUNNING, ())


def test_a_launcher_that_fails_after_a_stop_ends_in_suspension() -> None:
    """And not in a wait for its operator, who would start it again."""
    job, _ = decide(going(4), seeing(noticed(notice(1), notice(2), notice(3))))
    assert job.decision.phase is Phase.STOPPING
    job, planned = decide(observing(job, running=False, exit_code=255), seeing())
    assert job.decision.phase is Phase.SUSPENDED
    assert planned.actions == (SuspendRun(1),)


def test_a_doomed_launcher_means_stop() -> None:
    on_launcher = {LAUNCHER: notice(9)}
    job, _ = decide(going(), seeing(on_launcher))
    assert job.decision.phase is Phase.STOPPING
    assert job.own_hosts == first(6) | {LAUNCHER}


def test_an_acknowledged_stop_suspends_until_it_is_confirmed() -> None:
    stopping, _ = decide(going(4), seeing(noticed(notice(1), notice(2), notice(3))))
    job, planned = decide(answered(stopping), seeing(granted=first(6)))
    assert planned.actions == (SuspendRun(1),)
    job, planned = decide(observing(job, running=False, exit_code=-9), seeing(granted=first(6)), at=9)
    assert (job.decision.phase, planned.actions) == (Phase.SUSPENDED, (SuspendRun(1),))
    job = observing(job, applied=job.decision.generation)
    job, _ = decide(job, seeing(granted=first(6)), at=10)
    job, planned = decide(job, seeing(granted=first(6)), at=10 + POLICY.resume_delay_seconds)
    assert (job.decision.phase, job.decision.run) == (Phase.RESUMING, 2)
    assert planned.actions == (SetHostList(first(6), frozenset()), StartRun(2))


def test_room_is_there_for_a_moment_before_it_is_used() -> None:
    """Pods that wait for it already have it first, also where it is enough for all."""
    job, planned = decide(suspended_job(asked()), seeing(granted=first(6)), at=1)
    assert (job.decision.phase, planned.wake_at) == (Phase.SUSPENDED, T0 + 1 + POLICY.resume_delay_seconds)
    job, _ = decide(job, seeing(), at=2)
    job, _ = decide(job, seeing(granted=first(6)), at=3)
    job, _ = decide(job, seeing(granted=first(6)), at=2.9 + POLICY.resume_delay_seconds)
    assert job.decision.phase is Phase.SUSPENDED
    job, _ = decide(job, seeing(granted=first(6)), at=3 + POLICY.resume_delay_seconds)
    assert job.decision.phase is Phase.RESUMING


def test_a_smaller_resume_runs_on_what_it_was_granted() -> None:
    """The names that the operator would make at full size are none of its hosts."""
    suspended = suspended_job(asked())
    _, planned = decide(suspended, seeing(granted=first(4)), at=1)
    wake_at = planned.wake_at
    assert wake_at is not None
    waiting, _ = decide(suspended, seeing(granted=first(4)), at=1)
    job, _ = decide(waiting, seeing(granted=first(4)), at=wake_at - T0)
    assert (job.decision.phase, job.decision.hosts) == (Phase.RESUMING, first(4))
    job, _ = decide(observing(job, hosts=first(6), applied=job.decision.generation), seeing(), at=10)
    assert job.decision.hosts == first(4)
    job, _ = decide(observing(job, hosts=first(4), running=True, run=2), seeing(), at=11)
    assert (job.decision.phase, job.decision.hosts) == (Phase.RUNNING, first(4))


def test_a_resume_that_does_not_come_up_is_suspended_again() -> None:
    """With a pause that grows, and the same number is not used twice."""
    job, _ = decide(suspended_job(asked()), seeing(granted=first(6)), at=1)
    job, _ = decide(job, seeing(granted=first(6)), at=1 + POLICY.resume_delay_seconds)
    late = 1 + POLICY.resume_delay_seconds + POLICY.resume_timeout_seconds
    job, planned = decide(observing(job, applied=job.decision.generation), seeing(), at=late)
    assert (job.decision.phase, job.decision.failed_resumes) == (Phase.SUSPENDED, 1)
    assert planned.actions == (SuspendRun(2),)
    job = observing(job, applied=job.decision.generation)
    job, _ = decide(job, seeing(granted=first(6)), at=late + POLICY.resume_backoff_seconds)
    job, _ = decide(job, seeing(granted=first(6)), at=late + 2 * POLICY.resume_backoff_seconds)
    assert (job.decision.phase, job.decision.run) == (Phase.RESUMING, 3)


def test_workers_lost_without_a_notice_may_be_replaced_for_a_while() -> None:
    short = observing(going(), hosts=first(2))
    job, planned = decide(short, seeing())
    assert (job.decision.phase, planned.wake_at) == (Phase.RUNNING, T0 + POLICY.lost_grace_seconds)
    back, _ = decide(observing(job, hosts=hosts(1, 2, 7)), seeing(), at=POLICY.lost_grace_seconds)
    assert (back.decision.phase, back.decision.below_min_since) == (Phase.RUNNING, None)
    gone, _ = decide(job, seeing(), at=POLICY.lost_grace_seconds)
    assert gone.decision.phase is Phase.STOPPING


def test_processes_without_a_stream_are_told_when_everybody_is() -> None:
    for job, told in ((going(4), [StopProcesses(1)]), (running_job(spec(4)), [])):
        seen = seeing(noticed(notice(1), notice(2), notice(3)), missing_since=T0)
        stopping, planned = decide(job, seen)
        assert StopProcesses(1) not in planned.actions
        stopping, planned = decide(stopping, seen, at=POLICY.rank_zero_grace_seconds)
        assert [each for each in planned.actions if isinstance(each, StopProcesses)] == told
        _, planned = decide(observing(stopping, running=False, exit_code=255), seen, at=9)
        assert StopProcesses(1) not in planned.actions
