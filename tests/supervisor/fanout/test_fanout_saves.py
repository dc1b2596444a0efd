"""Which checkpoints of a job are kept."""

from dataclasses import replace

from supervisor.domain.ids import Host, JobId, JobName
from supervisor.domain.order import Worker
from supervisor.fanout.ranks import Save, Saves

JOB = JobId(JobName("job"), "uid", 0.0)


def _worker(run: int = 1, rank: int | None = 0, job: JobId = JOB) -> Worker:
    return Worker("process", job, run, Host("n1"), rank)


def test_the_last_checkpoint_of_rank_zero_counts() -> None:
    """That of another rank may be a part, and that of an earlier run came late."""
    saves = Saves()
    saves.saved(_worker(), 20.0, 100.0)
    saves.saved(_worker(rank=1), 90.0, 150.0)
    saves.saved(_worker(rank=None), 90.0, 150.0)
    assert saves.last.get(JOB) == Save(run=1, at=100.0, process="process", seconds=20.0)
    saves.saved(_worker(run=2), 30.0, 200.0)
    saves.saved(_worker(run=1), 10.0, 250.0)
    assert saves.last.get(JOB) == Save(run=2, at=200.0, process="process", seconds=30.0)


def test_what_a_checkpoint_took_is_known_until_the_next_one_that_says_it() -> None:
    saves = Saves()
    saves.saved(_worker(), 20.0, 100.0)
    saves.saved(_worker(run=2), None, 200.0)
    assert saves.last.get(JOB) == Save(run=2, at=200.0, process="process", seconds=20.0)


def test_a_job_resumes_from_the_last_checkpoint_before_a_failed_one() -> None:
    """Rank 0 may have saved its part of a checkpoint that another rank could not save."""
    saves, worker = Saves(), _worker()
    assert saves.step_before(JOB, 82) is None
    saves.resumed(worker, 60)
    saves.saved(worker, None, 100.0, 82)
    saves.resumed(_worker(rank=1), 7)
    assert (saves.step_of(JOB), saves.step_before(JOB, 90), saves.step_before(JOB, 82)) == (82, 82, 60)
    saves.resumed(_worker(run=2), 60)
    assert saves.step_before(JOB, 61) == 60


def test_a_checkpoint_is_older_than_one_that_its_process_has_reported() -> None:
    """Not after the process has gone back, and another process may have loaded an older one."""
    saves, worker = Saves(), _worker()
    saves.saved(worker, None, 100.0, 60)
    assert saves.is_older(worker, 40)
    assert not saves.is_older(worker, 60)
    assert not saves.is_older(replace(worker, process="another"), 40)
    saves.resumed(worker, 30)
    assert not saves.is_older(worker, 40)


def test_checkpoints_of_jobs_that_are_forgotten_are_too() -> None:
    saves = Saves()
    other = JOB._replace(uid="another")
    for job in (JOB, other):
        saves.saved(_worker(job=job), 20.0, 100.0)
    saves.forget_others({JOB})
    assert saves.last.get(JOB) is not None
    assert saves.last.get(other) is None
