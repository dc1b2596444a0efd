"""kubeai.torch: a rank that ends or freezes at any point of a hand-over costs what its part costs, and no bit is wrong.

`make test-frameworks ARGS="-k handover_faults"` strikes at each point that there is, with FSDP2 and with a
ZeroRedundancyOptimizer.
"""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.frameworks.frameworks_exact import assert_exact_states
from tests.frameworks.frameworks_rounds import Rounds

pytestmark = pytest.mark.timeout(1800)
_EVERY = 10
"""Steps between two checkpoints, as the script has it."""
_PROBED = 5
"""Points of the first stage that there are also if the network is measured once."""
_LIMIT = 5.0
"""How long ranks wait for one that is frozen, in seconds. Others are known to be gone at once."""
_BESIDES = 20.0
"""Seconds for all else that leads into the next round, on a busy machine."""
_BATCH = 2
"""How many processes start together."""

_Point = tuple[str, int]


@dataclass
class _Walk:
    """Strikes the members of one job, one after the other.

    Attributes:
        rounds: Of the job.
        signal: Which one strikes.
        lost: For each change at which parts were lost the step of it.
        seconds: How long each change took from the strike on.
    """

    rounds: Rounds
    signal: signal.Signals
    lost: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))
    _spares: list[str] = field(default_factory=list)

    def spare(self) -> str:
        """Return the name of a process that is ready to join."""
        if not self._spares:
            self._spares = [f"r{next(self._numbers)}" for _ in range(_BATCH)]
            self.rounds.start(*self._spares, joins=True)
        return self._spares.pop()

    def points(self, name: str, *after: str) -> list[_Point]:
        """Change to the next round, which nothing disturbs; returns the points that this process has come to."""
        self.rounds.until_ready()
        before = len(self.rounds.recorded(name))
        self.rounds.regroup(*after)
        found = [(line["stage"], line["point"]) for line in self.rounds.recorded(name)[before:] if "stage" in line]
        return [(stage, point) for stage, point in found if stage != "prepared" or point < _PROBED]

    def strike(self, name: str, point: _Point, *after: str) -> int:
        """Strike a process at a point of the change to a round, and form the next one without it; returns its end.

        All are connected for the round before. It is another one if the process is struck before it.
        """
        rounds, (stage, number) = self.rounds, point
        rounds.foretell(*after)
        (rounds.root / f"strike-{stage}-{number}-{name}").write_text(str(int(self.signal)), encoding="ascii")
        step, known = rounds.agree_soon(), rounds.members
        rounds.let_go(name)
        if stage != "prepared":
            rounds.until_holding(step)
            (rounds.root / "agreed").unlink()  # the others may come to this step again
            rounds.announce(*after, terminates=self.signal is not signal.SIGTERM)
        rounds.until_struck(name)
        began = time.monotonic()
        if stage == "prepared":
            (rounds.root / "agreed").unlink()
        if stage == "prepared" or name in after:
            rounds.announce(*(each for each in after if each != name))
        rounds.until_ready()
        self.seconds.append(time.monotonic() - began)
        if self.signal is not signal.SIGTERM and name in known:
            self.lost.append(step)
        return rounds.bury(name)


def _chosen(points: list[_Point], some: int | None) -> list[_Point]:
    return points if some is None else [Random(some).choice(points)]  # noqa: S311 - chosen, not secret


def _leavers(walk: _Walk, some: int | None) -> None:
    """Strike the one of three that leaves."""
    walk.rounds.start("a", "c", "b")
    points = walk.points("c", "a", "b")
    if walk.signal is signal.SIGTERM:
        points = [each for each in points if each[0] == "give"]  # before, its agent knows of no next round
    for point in _chosen(points, some):
        leaver = walk.spare()
        walk.rounds.regroup("a", leaver, "b")
        status = walk.strike(leaver, point, "a", "b")
        assert status == -(signal.SIGTERM if walk.signal is signal.SIGTERM else signal.SIGKILL)


def _survivors(walk: _Walk, some: int | None) -> None:
    """Strike one that stays, while another one leaves and a third one joins."""
    walk.rounds.start("a", "c", "b")
    members = "a", walk.spare(), "b"
    for point in _chosen(walk.points("b", *members), some):
        walk.strike(members[2], point, "a", joiner := walk.spare(), members[2])
        members = "a", joiner, walk.spare()
        walk.rounds.regroup(*members)


def _joiners(walk: _Walk, some: int | None) -> None:
    """Strike one that joins two others."""
    walk.rounds.start("a", "b")
    first = walk.spare()
    points = walk.points(first, "a", first, "b")
    walk.rounds.regroup("a", "b")
    for point in _chosen(points, some):
        joiner = walk.spare()
        walk.strike(joiner, point, "a", joiner, "b")


def _assert_exact(home: Path, root: Path, walk: _Walk) -> None:
    """Assert that the state before each step was that of an undisturbed run, and that no step is missing."""
    assert_exact_states(home, root, walk.rounds)
    steps = [line["step"] for line in walk.rounds.recorded("a") if line["event"] == "end"]
    jumps = [(before + 1, after) for before, after in pairwise(steps) if after != before + 1]
    assert jumps == [(step, step // _EVERY * _EVERY) for step in walk.lost if step % _EVERY]


_ROLES = {"leaver": _leavers, "survivor": _survivors, "joiner": _joiners}
_SCRIPTS = {"fsdp2": "frameworks_handover.py", "zero": "frameworks_zero.py"}
_BRIEF = [("fsdp2", "survivor", signal.SIGKILL), ("zero", "leaver", signal.SIGTERM)]
_SIGNALS = {"leaver": (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)}
_ALL = [
    (script, role, number)
    for script in _SCRIPTS
    for role in _ROLES
    for number in _SIGNALS.get(role, (signal.SIGKILL, signal.SIGSTOP))
]


def _id(value: object) -> str:
    if isinstance(value, tuple):
        return "-".join(each.name if isinstance(each, signal.Signals) else each for each in value)
    return "all" if value is None else "some"


@pytest.mark.parametrize(
    ("who", "some"),
    [
        *(pytest.param(who, 1, marks=pytest.mark.brief) for who in _BRIEF),
        *(pytest.param(who, None, marks=pytest.mark.long) for who in _ALL),
    ],
    ids=_id,
)
def test_whoever_is_struck_at_any_point_of_a_hand_over_takes_no_more_along_than_its_part(
    fsdp2: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    who: tuple[str, str, signal.Signals],
    some: int | None,
) -> None:
    """Killed, frozen or told to end. A joiner takes nothing along. A leaver told to end gives its part first."""
    script, role, number = who
    kind, path = f"exact-{_LIMIT:g}", _SCRIPTS[script]
    with Rounds(fsdp2, tmp_path / "walk", kind, 100_000, 0.01, path, warm=some is None) as rounds:
        walk = _Walk(rounds, number)
        _ROLES[role](walk, some)
        rounds.until_step(rounds.step_of("a") + 1)
    record_property("points, and seconds at most", (len(walk.seconds), round(max(walk.seconds), 1)))
    _assert_exact(fsdp2, tmp_path, walk)
    assert max(walk.seconds) < _BESIDES + (_LIMIT if number is signal.SIGSTOP else 0)
