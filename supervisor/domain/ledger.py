"""The accounts of a job's worker-seconds.

A worker-second is a second of one worker that a job has asked for, or holds. Every one belongs to just one account, so
that the accounts add up to the whole. The words are those of the field where it has one: *scheduling goodput* is the
share of what a job wants that it holds, *runtime goodput* the share of what it holds that trains, and their product the
*effective training time ratio*.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from supervisor.domain.capacity import Machine, MachinePool, PriceClass


class Account(StrEnum):
    """Says where a worker-second goes. Those of `HELD` are of workers that a job holds."""

    TRAINING = "training"
    """A worker of a run that makes steps, none of which was made before."""
    REPEATING = "repeating"
    """A worker of a run that makes steps which were made before, and lost."""
    SAVING = "saving"
    """A worker of a run that saves a checkpoint, makes no steps meanwhile, and goes on."""
    AGREEING = "agreeing"
    """A worker of a run that waits at an agreed step for the other ranks."""
    CHANGING = "changing"
    """A worker of a run whose hosts change while its processes live on."""
    UNMEASURED = "unmeasured"
    """A worker of a run that goes on, while no process says what it does."""
    LEAVING = "leaving"
    """A worker that the run has left out already because its host will be reclaimed, while the host is still there."""
    JOINING = "joining"
    """A worker that its run has not taken in yet."""
    STOPPING = "stopping"
    """A worker of a run that saves and ends, from the decision to stop until its hosts are free."""
    STARTING = "starting"
    """A worker that is held while no run goes on: a resume, or a restart by the job's controller. Also one of a run
    whose processes have not finished a step yet."""
    MISSING = "missing"
    """A worker that a job has asked for and does not have, while others of it are held."""
    WAITING = "waiting"
    """A worker of a job that holds none, because there is no capacity for it."""
    QUEUED = "queued"
    """A worker of a job that its queue holds back."""
    PAUSED = "paused"
    """A worker of a job that a person has suspended."""


RUN = (
    Account.TRAINING,
    Account.REPEATING,
    Account.SAVING,
    Account.AGREEING,
    Account.CHANGING,
    Account.UNMEASURED,
)
"""Worker-seconds of runs that go on. Only processes can tell them apart."""
HELD = (*RUN, Account.LEAVING, Account.JOINING, Account.STOPPING, Account.STARTING)
WANTED = (*HELD, Account.MISSING, Account.WAITING)
"""Worker-seconds that a job could have used. A queue or a person that holds a job back means it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOn:
    """The kind of machine that a worker is held on; unknown fields are empty.

    `gpus` are those of the worker, which may be a part of the machine's; None if that is unknown.
    """

    cloud: str = ""
    zone: str = ""
    instance_type: str = ""
    price_class: PriceClass = PriceClass.UNKNOWN
    gpus: float | None = None

    @classmethod
    def of(cls, machine: Machine, gpus: float | None) -> "HeldOn":
        """Returns the kind of a machine, with the GPUs of a worker on it. A number below 0 is none."""
        return cls(
            cloud=machine.cloud,
            zone=machine.zone,
            instance_type=machine.instance_type,
            price_class=machine.price_class,
            gpus=gpus if gpus is not None and gpus >= 0 else None,
        )

    def or_else(self, other: "HeldOn") -> "HeldOn":
        """Returns this kind, with its unknown fields taken from `other`."""
        return HeldOn(
            cloud=self.cloud or other.cloud,
            zone=self.zone or other.zone,
            instance_type=self.instance_type or other.instance_type,
            price_class=other.price_class if self.price_class is PriceClass.UNKNOWN else self.price_class,
            gpus=other.gpus if self.gpus is None else self.gpus,
        )

    @property
    def pool(self) -> MachinePool:
        """The pool of the machine."""
        return MachinePool(
            cloud=self.cloud, zone=self.zone, instance_type=self.instance_type, price_class=self.price_class
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """What rank 0 has spent its time on, since the start of its process.

    Attributes:
        seconds: How long it has taken part.
        spent: Which of these seconds it made no steps in, by account.
        first: The number of finished steps from which it has begun.
        highest: The highest number of finished steps that it has had.
        made: The steps that it has made. Those that it made again count again.
    """

    seconds: float
    spent: Mapping[Account, float]
    first: int
    highest: int
    made: int
