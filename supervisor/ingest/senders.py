"""The job and run of whoever speaks with the token of a job: a training process, or an elastic agent of torchrun."""

from supervisor.decide.registration import admit, run_of
from supervisor.domain.ids import JobId
from supervisor.identity.tokens import Process
from supervisor.ingest.errors import ForeignTokenError
from supervisor.store.interface import Store


def sender_run(store: Store, principal: Process, named: int | None) -> tuple[JobId, int]:
    """The job and run of a message: the run of its token, if the token names one. `named` is the message's own.

    Raises:
        ForeignTokenError: The message names another run than the token.
        UnknownJobError: The job is unknown, or has no run yet.
        RunIsOverError: A later run has started, or the job has ended.
    """
    job = store.snapshot().jobs.get(principal.job)
    run = principal.run
    if run is None:
        run = run_of(job, principal.uid, named)
    elif named not in (run, None):
        raise ForeignTokenError(f"the token is for run {run}")
    return admit(job, principal.uid, run).id, run
