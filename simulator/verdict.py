"""The judge's criteria and findings. All times are in seconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Self


@dataclass(frozen=True, slots=True)
class VerdictBounds:
    """How soon the product must act if nothing but the cloud's reclaims disturbs it, in seconds.

    Attributes:
        act: From a notice on a host of the ring to its exclusion or to the STOP. A poll takes 1 s, the window that
            collects a group 1.25 s. The rest is for a busy machine, and half of the shortest lead of a group is left.
        suspend: From the checkpoint of a STOP to the end of its run. The supervisor learns of the checkpoint at once,
            and a launcher ends its workers within 2 s.
        withdraw: From the withdrawal of a notice to the end of its host's exclusion. Three clear polls take 2 to 3.5 s.
        join: Until a host without a notice is in the ring of a job that has room for it. Withdrawal takes 4 s, the
            pause before a growth 2 s, discovery 1 s, the start of a worker 2 to 4 s.
        resume: Until a suspended job has a ring, once there are enough hosts without a notice.
    """

    act: float = 5.0
    suspend: float = 5.0
    withdraw: float = 5.0
    join: float = 15.0
    resume: float = 15.0


@dataclass(frozen=True, slots=True)
class Expectations:
    """The expected result."""

    steps: int
    """Number of training steps."""
    digest: str
    """Digest of an uninterrupted run (``simulator.job.reference``)."""
    min_workers: int
    """Fewer hosts than this justify a STOP."""
    max_workers: int | None = None
    """Maximum size of a ring; None = no limit."""
    worker_multiple: int = 1
    """Every ring has a multiple of this many hosts. Fewer hosts than this may be left out without a notice."""
    agreed: bool = False
    """Whether all ranks of a stopped ring must save, at one step."""
    withdrawal_seconds: float = 4.0
    """How long a withdrawn notice still justifies an action: withdrawal takes three clear polls of 1 s."""
    bounds: VerdictBounds | None = None
    """None if a test also disturbs the product or other jobs compete for the hosts: then no time is demanded."""


class Failure(StrEnum):
    STEP_LOST = "step lost"
    STEP_SKIPPED = "step skipped"
    FALSE_STOP = "false stop"
    FALSE_EXCLUSION = "false exclusion"
    NOT_EXCLUDED = "not excluded"
    NOT_STOPPED = "not stopped"
    NOT_SAVED = "not saved"
    NOT_AGREED = "not agreed"
    NOT_A_MULTIPLE = "not a multiple"
    NOT_SUSPENDED = "not suspended"
    NOT_TAKEN_BACK = "not taken back"
    NOT_RESUMED = "not resumed"
    NOTICED_HOST_USED = "noticed host used"
    RING_BROKEN = "ring broken"
    TWO_RUNS = "two runs at a time"
    GROUP_SPLIT = "group split"
    STEP_AFTER_STOP = "step after the stop's checkpoint"
    RANKS_DIFFER = "ranks differ"
    UNFINISHED = "unfinished"
    PARAMETERS_DIFFER = "parameters differ"


@dataclass(frozen=True, slots=True)
class VerdictFinding:
    failure: Failure
    detail: str


@dataclass(frozen=True, slots=True)
class Latency:
    """The distribution of a duration; None if it never occurred."""

    count: int
    p50: float | None
    p99: float | None
    longest: float | None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """Summarise. A percentile is the smallest sample that this percentage does not exceed."""
        ordered = sorted(seconds)
        if not ordered:
            return cls(0, None, None, None)
        return cls(len(ordered), _percentile(ordered, 50), _percentile(ordered, 99), ordered[-1])


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


class GroupMeaning(Enum):
    """What the notices of a group meant for the job, by the truth."""

    SHRINK = "shrink"
    """Enough hosts remained."""
    STOP = "stop"
    """Fewer than the minimum remained before the list changed. The list is frozen then, so no change is counted."""
    IDLE = "idle"
    """The job was not running, was already stopping, or used none of these hosts."""


@dataclass(frozen=True, slots=True)
class NoticeGroup:
    """Hosts whose notices were shown together."""

    name: str
    meaning: GroupMeaning
    hosts: tuple[str, ...]
    changes: int
    """Changes of the exclusions that added a host of this group while its notice was live."""
    excluded_after: tuple[float, ...]
    """For each excluded host, the time since the group's first notice."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The measured results."""

    notices: int
    """Announcements. One that was withdrawn and repeated counts twice."""
    groups: tuple[NoticeGroup, ...]
    notice_to_process: Latency
    """From a notice to the first process that receives it."""
    notice_to_flag: Latency
    """From the notice that made a STOP certain until rank 0 sees its flag down."""
    notice_to_host_list: Latency
    """From the first notice of a SHRINK group to the exclusion of each of its hosts."""
    steps_applied: int
    """The last step."""
    steps_lost: int
    """Repeated steps."""
    steps_skipped: int
    steps_after_stop: int
    false_stops: int
    unmet: int
    """Violated demands, such as a noticed host that was not excluded."""
    suspensions: int
    """Runs that were told to STOP."""
    resumes: int
    """Runs that trained after one that was told to STOP."""
    hosts_blacklisted: int
    finished: bool
    parameters_equal: bool

    @property
    def changes_per_group(self) -> tuple[int, ...]:
        """Changes of the exclusions for each SHRINK group. The goal is one each."""
        return tuple(group.changes for group in self.groups if group.meaning is GroupMeaning.SHRINK)


@dataclass(frozen=True, slots=True)
class ReplayVerdict:
    figures: Figures
    failures: tuple[VerdictFinding, ...]

    @property
    def ok(self) -> bool:
        return not self.failures
