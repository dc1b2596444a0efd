"""The directive for each training process."""

from collections.abc import Mapping
from dataclasses import replace

from supervisor.decide.directives import JobDirectives
from supervisor.domain.ids import Host
from supervisor.domain.job import Framework, Phase, Result, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.domain.order import ProcessDirective, ProcessDirectiveKind, Worker
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    answered,
    decide,
    first,
    hosts,
    notice,
    noticed,
    obeyed,
    observing,
    running_job,
    seeing,
    spec,
    suspended_job,
)

GROUP = noticed(notice(5, left=120), notice(6, left=100))


def _told(
    job: SupervisedJob, notices: Mapping[Host, ReclaimNotice], number: int, *, rank: int | None = 1, run: int = 1
) -> ProcessDirective:
    return JobDirectives.of(job, notices, POLICY).directive(Worker(f"p{number}", job.id, run, Host(f"n{number}"), rank))


def _shrunk(framework: Framework) -> SupervisedJob:
    return decide(running_job(replace(spec(), framework=framework)), seeing(GROUP), 2).job


def _stopping() -> SupervisedJob:
    return decide(running_job(spec(5, 6)), seeing(GROUP)).job


def test_without_a_notice_everybody_goes_on() -> None:
    told = _told(running_job(), {}, 1)
    assert (told.kind, told.act_at, told.notice, told.release) == (ProcessDirectiveKind.RUN, None, None, False)


def test_a_notice_is_shown_before_anything_is_decided() -> None:
    """A process sees the notice on its own host, the others the job's most urgent one, and all go on."""
    told = {number: _told(running_job(), GROUP, number) for number in (1, 5, 6)}
    assert [number for number, each in told.items() if each.act_at is None or each.act_at <= T0] == [1]
    assert told[1].kind is ProcessDirectiveKind.RUN
    assert {number: each.notice for number, each in told.items()} == {
        1: GROUP[Host("n6")],
        5: GROUP[Host("n5")],
        6: GROUP[Host("n6")],
    }


def test_a_process_does_not_go_down_with_its_host_because_nothing_was_decided() -> None:
    """As when the store is away: it leaves shortly before its own deadline, and nobody else does."""
    leave = _told(running_job(), GROUP, 5)
    assert (leave.kind, leave.act_at) == (ProcessDirectiveKind.LEAVE, T0 + 120 - POLICY.leave_margin_seconds)
    assert leave.generation == running_job().decision.generation
    assert _told(running_job(), GROUP, 6, rank=0).kind is ProcessDirectiveKind.LEAVE
    assert _told(running_job(), GROUP, 1).kind is ProcessDirectiveKind.RUN


def test_what_is_gone_tells_nobody_to_leave() -> None:
    """A LEAVE without a decision needs an announcement: a node that is back lives."""
    assert _told(running_job(), noticed(notice(5, state=NoticeState.GONE)), 5).kind is ProcessDirectiveKind.RUN


def test_however_short_a_notice_is_the_decision_comes_first() -> None:
    """A LEAVE is final: had it taken effect, rank 0 would not hear the STOP that is decided a moment later."""
    short = noticed(notice(5, left=1.5))
    assert _told(running_job(), short, 5, rank=0).act_at == T0 + 1.0
    assert _told(running_job(), noticed(notice(5, left=0.0)), 5, rank=0).act_at == T0 + 1.0
    stopping = decide(running_job(spec(6, 6)), seeing(short)).job
    assert _told(stopping, short, 5, rank=0).kind is ProcessDirectiveKind.STOP


def test_only_announced_notices_of_the_job_are_shown() -> None:
    """Neither what is gone already nor what happens to hosts of others is news for a process."""
    gone = noticed(notice(5, state=NoticeState.GONE), notice(9))
    assert _told(running_job(), gone, 1).notice is None


def test_a_process_sees_its_own_hosts_notice_wherever_it_is() -> None:
    assert _told(running_job(), noticed(notice(9)), 9).notice == notice(9)


def test_a_notice_is_told_by_the_jobs_host() -> None:
    """Where that is a pod, what is announced may be its node: a process finds itself by its own name."""
    of_its_node = {Host("n2"): notice(9)}
    for number in (1, 2):
        told = _told(running_job(), of_its_node, number)
        assert (told.notice, told.host, told.is_own) == (notice(9), Host("n2"), number == 2)


def test_the_launchers_host_concerns_everybody() -> None:
    job = running_job(replace(spec(), launcher_host=Host("n9")))
    assert _told(job, noticed(notice(9)), 1).notice == notice(9)


def test_horovod_workers_leave_shortly_before_their_deadline() -> None:
    """The host list does the work; who is still there a margin before the end is told to go. The others go on."""
    job = _shrunk(Framework.HOROVOD)
    leave = _told(job, GROUP, 5)
    assert (leave.kind, leave.act_at) == (ProcessDirectiveKind.LEAVE, T0 + 120 - POLICY.leave_margin_seconds)
    assert _told(job, GROUP, 6).act_at == T0 + 100 - POLICY.leave_margin_seconds
    assert _told(job, GROUP, 1).kind is ProcessDirectiveKind.RUN


def test_torchrun_workers_save_and_the_doomed_leave() -> None:
    job = _shrunk(Framework.TORCHRUN)
    assert _told(job, GROUP, 5).kind is ProcessDirectiveKind.LEAVE
    told = _told(job, GROUP, 1)
    assert (told.kind, told.act_at) == (ProcessDirectiveKind.CHECKPOINT, None)


def test_one_group_is_one_checkpoint() -> None:
    """Later decisions about the same group do not ask for another; the next group does."""
    job = _shrunk(Framework.TORCHRUN)
    generation = _told(job, GROUP, 1).generation
    job = decide(obeyed(job), seeing(GROUP), 3).job
    assert _told(job, GROUP, 1).generation == generation < job.decision.generation
    more = GROUP | noticed(notice(4, seen=T0 + 10))
    assert _told(decide(job, seeing(more), 12).job, more, 1).generation > generation


def test_a_withdrawn_notice_takes_its_leave_back() -> None:
    job = decide(_shrunk(Framework.HOROVOD), seeing(noticed(notice(5, left=120))), 3).job
    assert _told(job, noticed(notice(5, left=120)), 6).kind is ProcessDirectiveKind.RUN


def test_a_stop_goes_to_rank_zero_alone() -> None:
    """Wherever rank 0 is; the others and those whose rank is unknown go on meanwhile."""
    job = _stopping()
    stop = _told(job, GROUP, 1, rank=0)
    assert (stop.kind, stop.act_at, stop.generation) == (ProcessDirectiveKind.STOP, None, job.decision.generation)
    assert _told(job, GROUP, 6, rank=0).kind is ProcessDirectiveKind.STOP
    assert _told(job, GROUP, 2, rank=3).kind is ProcessDirectiveKind.RUN
    assert _told(job, GROUP, 2, rank=None).kind is ProcessDirectiveKind.RUN


def test_a_doomed_rank_of_a_stopping_run_leaves_after_everybody_should_have_been_told() -> None:
    """Only where nobody could decide that: the STOP for everybody comes before it."""
    job = _stopping()
    leave = _told(job, GROUP, 6, rank=3)
    assert leave.kind is ProcessDirectiveKind.LEAVE
    told = T0 + 100 - POLICY.leave_margin_seconds
    assert leave.act_at is not None
    assert told < leave.act_at < T0 + 100
    assert decide(job, seeing(GROUP), 98).job.decision.stop is not None
    assert _told(decide(job, seeing(GROUP), 98).job, GROUP, 6, rank=3).kind is ProcessDirectiveKind.STOP


def test_then_it_goes_to_everybody() -> None:
    job = decide(_stopping(), seeing(GROUP), 95).job
    kinds = {_told(job, GROUP, number, rank=number - 1).kind for number in range(1, 7)}
    assert kinds == {ProcessDirectiveKind.STOP}
    assert _told(job, GROUP, 2).generation == _told(_stopping(), GROUP, 1, rank=0).generation


def test_a_suspension_tells_and_releases_everybody() -> None:
    """All stop; whoever is held in its exit hook may go once the run has ended, so that nobody steps past it."""
    job = decide(answered(_stopping()), seeing(GROUP), 1).job
    for ended in (False, True):
        job = obeyed(job) if ended else job
        told = [_told(job, GROUP, number, rank=number - 1) for number in range(1, 7)]
        assert {(each.kind, each.release) for each in told} == {(ProcessDirectiveKind.STOP, ended)}


def test_processes_of_an_earlier_run_are_released() -> None:
    """A process that is still held when its job resumes has nothing to wait for."""
    job = decide(suspended_job(), seeing({}, first(6))).job
    assert (job.decision.phase, job.decision.run) == (Phase.RESUMING, 2)
    assert _told(job, {}, 1, run=1).release
    assert not _told(obeyed(job), {}, 1, run=2).release


def test_the_new_run_of_a_resumed_job_goes_on() -> None:
    job = obeyed(decide(suspended_job(), seeing({}, first(6))).job)
    assert _told(job, {}, 1, rank=0, run=2).kind is ProcessDirectiveKind.RUN


def test_a_job_that_is_over_releases() -> None:
    """Nobody is held for a job that has ended, and nobody is stopped by it."""
    job = decide(observing(running_job(), running=False, exit_code=0, result=Result.SUCCEEDED), seeing()).job
    told = _told(job, {}, 1, rank=0)
    assert (told.kind, told.release) == (ProcessDirectiveKind.RUN, True)


def test_excluded_hosts_without_a_notice_are_told_nothing() -> None:
    """A LEAVE needs a notice that still holds, even before control has looked again."""
    job = _shrunk(Framework.HOROVOD)
    assert job.decision.exclusions == hosts(5, 6)
    assert _told(job, {}, 5).kind is ProcessDirectiveKind.RUN
