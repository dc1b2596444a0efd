"""The product's guarantees, and whether a schedule leaves room for them.

No step is lost if the lead is at least one step, one checkpoint and 2 s. A faster replay is refused.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from simulator import checkpoint
from simulator.cloud.schedule import ReclaimSchedule, ScheduleError, free_at_end
from simulator.cloud.synthetic import leads
from simulator.events import JobEvent, JobEventKind
from simulator.model import Task

SPARE_SECONDS = 2.0
CHECKPOINTS_TIMED = 5


@dataclass(frozen=True, slots=True)
class GuaranteeCosts:
    """Duration of one training step and one checkpoint, in seconds."""

    step: float
    checkpoint: float

    @property
    def minimum_lead(self) -> float:
        """The shortest lead for which the guarantee holds."""
        return self.step + self.checkpoint + SPARE_SECONDS


def validate_schedule(schedule: ReclaimSchedule, min_workers: int, costs: GuaranteeCosts) -> None:
    """Check that a schedule leaves the product enough time and the job enough hosts to finish.

    Raises:
        ScheduleError: A notice comes too late, or too few nodes remain at the end.
    """
    if (left := free_at_end(schedule)) < min_workers:
        raise ScheduleError(
            f"only {left} nodes without a notice remain at the end, below the minimum of {min_workers}: the job could"
            " not finish; choose another end or a smaller minimum"
        )
    shortest = min(leads(schedule), default=None)
    if shortest is not None and shortest < costs.minimum_lead:
        raise ScheduleError(
            f"a lead of {shortest:.2f} s on the clock is less than a step of {costs.step:.2f} s, a checkpoint of"
            f" {costs.checkpoint:.2f} s and {SPARE_SECONDS:g} s: lower the speed"
        )


def timed_checkpoint(directory: Path) -> float:
    """Return the longest duration of a few checkpoints on this machine. Leaves a file in `directory`."""
    return max(_timed_save(directory / "timed-checkpoint") for _ in range(CHECKPOINTS_TIMED))


def _timed_save(path: Path) -> float:
    begun = time.monotonic()
    checkpoint.save(path, Task(seed=1, shards=1).first_params(), 1)
    return time.monotonic() - begun


def observed_costs(events: Sequence[JobEvent]) -> GuaranteeCosts:
    """Return the observed median step and the longest checkpoint at a STOP; 0 if there was none."""
    return GuaranteeCosts(_median_step(events), max(_checkpoints(events), default=0.0))


def _median_step(events: Iterable[JobEvent]) -> float:
    applied: dict[tuple[int, int], list[float]] = defaultdict(list)
    for event in events:
        if event.kind is JobEventKind.STEP_APPLIED and event.integer("rank") == 0:
            applied[event.integer("run"), event.integer("epoch")].append(event.t)
    between = [later - sooner for times in applied.values() for sooner, later in pairwise(times)]
    return statistics.median(between) if between else 0.0


def _checkpoints(events: Iterable[JobEvent]) -> Iterable[float]:
    flagged: dict[int, float] = {}
    for event in events:
        if event.kind is JobEventKind.FLAG_SEEN and event.integer("rank") == 0:
            flagged.setdefault(event.integer("run"), event.t)
        elif (
            event.kind is JobEventKind.CHECKPOINT_SAVED
            and (begun := flagged.pop(event.integer("run"), None)) is not None
        ):
            yield event.t - begun
