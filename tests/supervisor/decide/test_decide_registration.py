"""Reports of launchers and processes change a job's facts."""

import pytest

from supervisor.decide.registration import (
    ForeignJobError,
    LauncherFacts,
    NameIsLiveError,
    OlderRevisionError,
    Registration,
    RunIsOverError,
    UnknownJobError,
    acknowledge,
    admit,
    observe,
    register,
    run_of,
)
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Phase, Result, SupervisedJob
from supervisor.domain.order import Worker
from tests.supervisor.decide.decide_builders import (
    T0,
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

REPORT = LauncherFacts(revision=3, hosts=first(6), run=2, running=True, applied=8)


def _hello(instance: str = "instance", report: LauncherFacts = REPORT, *, launcher: str = "launcher") -> Registration:
    return Registration(
        name=JobName("job"), uid="new", launcher=launcher, instance=instance, spec=spec(2, 6), report=report
    )


def _stopping() -> SupervisedJob:
    return decide(running_job(spec(6, 6)), seeing(noticed(notice(6)))).job


def _answer(
    job: SupervisedJob,
    *,
    rank: int | None = 0,
    generation: int = 0,
    kind: AcknowledgementKind = AcknowledgementKind.SAVED,
) -> SupervisedJob | None:
    worker = Worker("p", job.id, 1, Host("n1"), rank)
    generation = job.decision.generation + generation
    return acknowledge(job, worker, Acknowledgement(run=1, generation=generation, kind=kind, step=3, at=T0))


def test_a_new_job_waits() -> None:
    job = register(
        None, _hello(report=LauncherFacts(revision=1, hosts=first(6), run=0, running=False)), live=False, now=T0
    )
    assert (job.uid, job.decision.phase, job.observed.registered_at) == ("new", Phase.WAITING, T0)


def test_a_running_job_is_taken_over_from_an_empty_store() -> None:
    job = register(None, _hello(), live=False, now=T0)
    assert (job.decision.phase, job.decision.run, job.observed.applied) == (Phase.RUNNING, 2, 8)


def test_the_same_launcher_says_again_what_is_so() -> None:
    """A reconnection keeps identity and decision; an older report in it is not believed."""
    known = observing(running_job(), revision=2)
    job = register(known, _hello(), live=True, now=T0)
    assert (job.uid, job.decision, job.spec, job.observed.run) == ("job", known.decision, spec(2, 6), 2)
    late = register(observing(known, revision=4), _hello(), live=True, now=T0)
    assert late.observed.run == 1


def test_a_live_name_is_refused() -> None:
    """A second launcher process under the name of a live job must choose another."""
    with pytest.raises(NameIsLiveError):
        register(running_job(), _hello("other"), live=True, now=T0)


def test_a_name_is_free_when_its_launcher_is_gone_or_its_job_is_over() -> None:
    assert register(running_job(), _hello("other"), live=False, now=T0).uid == "new"
    over = observing(running_job(), result=Result.SUCCEEDED)
    assert register(over, _hello("other"), live=True, now=T0).uid == "new"


def test_reports_are_taken_in_order() -> None:
    """A newer one is so, the same one is so already, an older one is refused."""
    known = observing(running_job(), revision=2)
    assert observe(known, "launcher", "instance", REPORT).observed.run == 2
    same = observing(known, revision=3)
    assert observe(same, "launcher", "instance", REPORT) is same
    with pytest.raises(OlderRevisionError):
        observe(observing(known, revision=4), "launcher", "instance", REPORT)


def test_only_its_own_launcher_speaks_for_a_job() -> None:
    """Neither another launcher nor another process of the same one, nor anybody for a job that is not there."""
    for launcher, instance in (("other", "instance"), ("launcher", "other")):
        with pytest.raises(ForeignJobError):
            observe(running_job(), launcher, instance, REPORT)
    with pytest.raises(UnknownJobError):
        observe(None, "launcher", "instance", REPORT)


def test_processes_are_of_the_present_run() -> None:
    """The job's uid counts and not its name; an earlier run is over, a later one is only not reported yet."""
    job = observing(running_job(), run=2)
    assert admit(job, "job", 2) is job
    assert admit(job, "job", 3) is job
    with pytest.raises(RunIsOverError):
        admit(job, "job", 1)
    with pytest.raises(RunIsOverError):
        admit(observing(job, result=Result.FAILED), "job", 2)
    for known in (None, job):
        with pytest.raises(UnknownJobError):
            admit(known, "earlier", 2)


def test_rank_zero_acknowledges_a_stop() -> None:
    job = _answer(_stopping())
    assert job is not None
    assert job.observed.acknowledgement is not None


def test_other_answers_change_nothing() -> None:
    job = _stopping()
    assert _answer(job, rank=1) is job
    assert _answer(job, rank=None) is job
    assert _answer(job, generation=-1) is job
    runs = running_job()
    assert _answer(runs) is runs


def test_a_saved_checkpoint_says_more_than_having_left() -> None:
    """`left` then `saved` ends as saved, and so does the other way round."""
    for kinds in (tuple(AcknowledgementKind), tuple(reversed(AcknowledgementKind))):
        job: SupervisedJob | None = _stopping()
        for kind in kinds:
            assert job is not None
            job = _answer(job, kind=kind)
        assert job is not None
        assert job.observed.acknowledgement is not None
        assert job.observed.acknowledgement.kind is AcknowledgementKind.SAVED


def test_hosts_of_a_first_hello_are_the_jobs() -> None:
    assert register(None, _hello(), live=False, now=T0).decision.hosts == hosts(1, 2, 3, 4, 5, 6)


def test_a_process_that_names_no_run_is_of_the_one_that_goes_on() -> None:
    """Between two runs it waits, as it may be of the next; one that was told its run stays with it."""
    job = observing(running_job(), run=2)
    assert run_of(job, "job", None) == 2
    assert (run_of(job, "job", 1), run_of(job, "job", 2)) == (1, 2)
    between = observing(job, running=False)
    assert run_of(between, "job", 2) == 2
    for known, uid, run in ((between, "job", None), (job, "job", 3), (job, "earlier", None), (None, "job", None)):
        with pytest.raises(UnknownJobError):
            run_of(known, uid, run)
    with pytest.raises(RunIsOverError):
        run_of(observing(job, result=Result.SUCCEEDED), "job", None)
