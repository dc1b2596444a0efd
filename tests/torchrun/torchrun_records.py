"""Reads the records of a job's processes, and computes the cost of a change of members."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median

_FEWEST = 5
"""So many steps tell a pace."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step that one process has finished.

    Attributes:
        at: When, in Unix seconds.
        step: Its number, from 0.
        rank: Rank of the process.
        world: Number of ranks.
        host: The host's name.
        pid: The process.
        run: The job's run.
        restarts: TORCHELASTIC_RESTART_COUNT: what torchrun has used up of `--max-restarts` on this host.
    """

    at: float
    step: int
    rank: int
    world: int
    host: str
    pid: int
    run: int
    restarts: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a change cost.

    Attributes:
        burned: What it used up of `--max-restarts`, on the host that lost most of those to which nothing happened.
        redone: Steps that were trained twice.
        pause: Seconds from the last step before to the first step after it.
        trained: The steps from the event to the pause, as a part of those that would have been trained at the pace from
            before the event; None if there were too few to know it.
    """

    burned: int
    redone: int
    pause: float
    trained: float | None


def read(directory: Path) -> list[Stepped]:
    """Return all finished steps of all processes, in the order of time."""
    return sorted(_read(directory), key=lambda stepped: stepped.at)


def cost(records: Sequence[Stepped], since: float, hit: str = "") -> Cost:
    """Return what the first change after an instant cost, if something happened to the host `hit`.

    Raises:
        ValueError: There was none.
    """
    for before, after in pairwise(_eras(records)):
        if after[0].at > since:
            redone = max(0, max(one.step for one in before) + 1 - after[0].step)
            between = (before[-1].at + after[0].at) / 2
            return Cost(
                _burned([one for one in records if one.host != hit], between),
                redone,
                after[0].at - before[-1].at,
                _trained(before, since),
            )
    raise ValueError("nothing has changed")


def latest(records: Sequence[Stepped]) -> Stepped | None:
    """Return the last step of rank 0."""
    return next((one for one in reversed(records) if one.rank == 0), None)


def _read(directory: Path) -> Iterator[Stepped]:
    for file in directory.glob("steps-*.jsonl"):
        # The last line of a process that was killed may be half written.
        whole, _, _ = file.read_text(encoding="ascii").rpartition("\n")
        yield from (Stepped(**json.loads(line)) for line in whole.splitlines())


def _eras(records: Sequence[Stepped]) -> Iterator[list[Stepped]]:
    """Yield the steps of rank 0, those of one process in one world together."""
    ours = [one for one in records if one.rank == 0]
    for _, era in groupby(ours, key=lambda one: (one.run, one.pid, one.world)):
        yield list(era)


def _trained(era: Sequence[Stepped], since: float) -> float | None:
    """Return which part of the steps that fit between an instant and the end of an era were trained."""
    earlier, later = ([one.at for one in era if (one.at > since) is is_later] for is_later in (False, True))
    if len(earlier) < _FEWEST or len(later) < _FEWEST:
        return None
    pace = median(end - begin for begin, end in pairwise(earlier))
    return len(later) * pace / (later[-1] - earlier[-1])


def _burned(records: Sequence[Stepped], between: float) -> int:
    """Compare the processes of each host just before and just after an instant at which none of them trained."""
    before = {one.host: one for one in records if one.at < between}
    after = {one.host: one for one in reversed(records) if one.at >= between}
    survivors = [host for host in after if host in before and after[host].run == before[host].run]
    return max((after[host].restarts - before[host].restarts for host in survivors), default=0)
