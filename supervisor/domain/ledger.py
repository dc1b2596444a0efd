"""The accounts of a job's worker-seconds.

A worker-second is a second of one worker that a job has asked for, or holds. Every one belongs to just one account, so
that the accounts add up to the whole. The words are those of the field where it has one: *scheduling goodput* is the
share of what a job wants that it holds, *runtime goodput* the share of what it holds that trains, and their product the
*effective training time ratio*.
"""

from enum import StrEnum


class Account(StrEnum):
    """Says where a worker-second goes. The first five are of workers that a job holds."""

    TRAINING = "training"
    """A worker of a run that goes on. What its process does in it, such as saving, is part of it."""
    LEAVING = "leaving"
    """A worker that the run has left out already because its host will be reclaimed, while the host is still there."""
    JOINING = "joining"
    """A worker that its run has not taken in yet."""
    STOPPING = "stopping"
    """A worker of a run that saves and ends, from the decision to stop until its hosts are free."""
    STARTING = "starting"
    """A worker that is held while no run goes on: a resume, or a restart by the job's controller."""
    MISSING = "missing"
    """A worker that a job has asked for and does not have, while others of it are held."""
    WAITING = "waiting"
    """A worker of a job that holds none, because there is no capacity for it."""
    QUEUED = "queued"
    """A worker of a job that its queue holds back."""
    PAUSED = "paused"
    """A worker of a job that a person has suspended."""


HELD = (Account.TRAINING, Account.LEAVING, Account.JOINING, Account.STOPPING, Account.STARTING)
WANTED = (*HELD, Account.MISSING, Account.WAITING)
"""Worker-seconds that a job could have used. A queue or a person that holds a job back means it."""
