"""kubeai.torch: at any point of a stop whose state is kept in memory, and of the resume, nothing costs more than that.

A rank is killed or frozen before each collective, each message to a rank or a state keeper, and each answer. So is a
state keeper. The state before each step is compared with that of an undisturbed run.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.frameworks_exact import assert_exact_states
from tests.frameworks.frameworks_rounds import Rounds
from tests.frameworks.frameworks_stops import MEGABYTE, RESUMES, StoppingJob, stopping_job

pytestmark = [pytest.mark.timeout(3000), pytest.mark.long]
_HOSTS = "abc"
_LEAVER = "b"
_LEFT = 10.0
"""Seconds until the host of the leaver is gone. No rank has measured a checkpoint, so that is too little for one."""
_LIMIT, _LIMIT_OF_KEEPERS = 5.0, 30.0
"""How long others wait for a rank that is frozen, and a rank for state keepers that are, in seconds."""
_BESIDES = 20.0
"""Seconds for all else, on a busy machine."""

_Point = tuple[str, int]


@dataclass
class _Walk:
    """Strikes at one point of a stop or of a resume after the other.

    Attributes:
        job: Has three hosts, of which one leaves at each stop.
        number: The signal that strikes.
        seconds: For each point, how long the others took from the strike on.
        outcomes: For each point how the ranks have answered the stop, and whether they have gone on from it.
        begun: The step that the present run has gone on from.
    """

    job: StoppingJob
    number: signal.Signals
    seconds: list[float] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    begun: int = 0

    def begin(self) -> None:
        """Train with all hosts, stop with a checkpoint, and go on from it."""
        self.resume()
        step = self.job.stop(seconds_left=None)
        assert (self.job.answers(step), self.job.saved_steps()) == (["saved"] * 3, [step])
        assert self.resume() == step

    def resume(self) -> int:
        """Start the processes of all hosts; returns the step that they go on from."""
        self.job.supervisor.direct()
        self.job.rounds.start(*_HOSTS)
        return self.goes_on_from()

    def goes_on_from(self) -> int:
        """Return the number of finished steps with which all ranks have begun the present round."""
        rounds = self.job.rounds
        rounds.until_ready()
        rounds.until(lambda: all(map(self._states, rounds.members)), "in a step")
        (self.begun,) = {self._states(name)[0] for name in rounds.members}
        return self.begun

    def stop(self) -> int:
        """Stop without a strike; returns the step whose state is kept."""
        leaving = {_LEAVER} & set(self.job.rounds.members)
        step = self.job.stop(*leaving, seconds_left=_LEFT)
        assert set(self.job.answers(step)) == {"kept"}
        assert self.job.has_all_parts(step)
        return step

    def points(self, stage: str, name: str) -> list[_Point]:
        """Stop and resume; returns the points that a process has come to."""
        before = len(self.job.rounds.recorded(name))
        step = self.stop()
        assert self.resume() == step
        lines = self.job.rounds.recorded(name)[before:]
        found = [(line["stage"], line["point"]) for line in lines if line["event"] == "point"]
        return [(of, number) for of, number in found if of.startswith(stage)]

    def strike_at_stop(self, name: str, point: _Point, *, keeper: str | None) -> None:
        """Strike when a process comes to a point of the stop, and go on with whatever is left of the state."""
        job, rounds, begun = self.job, self.job.rounds, self.begun
        self._arm(name, point, keeper)
        step = job.agree_to_stop(_LEAVER, seconds_left=_LEFT)
        rounds.let_go(*_HOSTS)
        others = [each for each in _HOSTS if each != name or keeper is not None]
        with self._measured(name, keeper):
            rounds.until_settled(lambda each: each in job.answers_of_hosts(step), *others)
        job.release()
        answered = job.answers_of_hosts(step)
        if "kept" in answered.values():
            assert job.has_all_parts(step)
        for each in sorted(_HOSTS, key=answered.__contains__, reverse=True):
            has_answered = each in others and answered.get(each) in ("kept", "saved")
            status = rounds.bury(each, waits=has_answered)
            assert not has_answered or status == RESUMES
        if keeper is not None:
            assert set(answered) == set(_HOSTS)
            assert len(set(answered.values())) == 1
            job.keepers[keeper].go_on()
        is_there = keeper is not None or "kept" in answered.values()
        resumed = self.resume()
        assert resumed in ((step,) if is_there else (step, begun))
        kinds = sorted({kind[0] for kind in answered.values()})
        self.outcomes.append("".join([*kinds, "+" if resumed == step else "-"]))

    def strike_at_resume(self, name: str, point: _Point, *, keeper: str | None) -> None:
        """Stop, strike when a process comes to a point of the resume, and go on with the others."""
        job, step = self.job, self.stop()
        saved = job.saved_steps()[-1]
        self._arm(name, point, keeper)
        job.supervisor.direct()
        job.rounds.start(*_HOSTS)
        if keeper is None:
            resumed = self._go_on_without(name)
            assert resumed == step
        else:
            with self._measured(name, keeper):
                resumed = self.goes_on_from()
            job.keepers[keeper].go_on()
            assert resumed in (step, saved)
        self.outcomes.append("+" if resumed == step else "-")

    def _go_on_without(self, name: str) -> int:
        """Let the others go on without a process, and stop; start all. Returns the step that these went on from."""
        rounds, others = self.job.rounds, [each for each in _HOSTS if each != name]
        rounds.let_go(name)
        with self._measured(name, None):
            rounds.until_lost(*others)
        rounds.form(*others)
        resumed = self.goes_on_from()
        rounds.bury(name)
        self.stop()
        self.resume()
        return resumed

    def _arm(self, name: str, point: _Point, keeper: str | None) -> None:
        process = 0 if keeper is None else self.job.keepers[keeper].pid
        stage, number = point
        path = self.job.rounds.root / f"strike-{stage}-{number}-{name}"
        path.write_text(f"{int(self.number)} {process}", encoding="ascii")

    @contextmanager
    def _measured(self, name: str, keeper: str | None) -> Iterator[None]:
        """Measure what takes place once the strike has come."""
        rounds = self.job.rounds
        if keeper is None:
            rounds.until_struck(name)
        else:
            rounds.until(lambda: not list(rounds.root.glob("strike-*")), "struck")
        began = time.monotonic()
        yield
        self.seconds.append(time.monotonic() - began)

    def _states(self, name: str) -> list[int]:
        """Return the steps of the present round before which a process has recorded its state."""
        lines: list[dict[str, Any]] = self.job.rounds.recorded(name)
        return [line["step"] for line in lines if line["event"] == "state" and line["round"] == self.job.rounds.number]


@contextmanager
def _job(home: Path, root: Path, limit: float) -> Iterator[StoppingJob]:
    """Run a supervisor and a state keeper for each host. Ranks wait for another one for so many seconds."""
    kind, script = f"exact_stops-{limit:g}", "frameworks_handover.py"
    rounds = Rounds(home, root / "walk", kind, 100_000, 0.01, script, warm=True)
    with stopping_job(root, rounds, _HOSTS, 64 * MEGABYTE) as job:
        yield job


_STRUCK = {
    "rank-zero": ("a", None),
    "leaver": ("b", None),
    "stayer": ("c", None),
    "own-keeper": ("c", "c"),
    "keeper-of-another": ("a", "c"),
}
_SIGNALS = signal.SIGKILL, signal.SIGSTOP
_WALKS = [(stage, who, number.name) for stage in ("stop", "resume") for who in _STRUCK for number in _SIGNALS]


@pytest.mark.parametrize("strike", _WALKS, ids="-".join)
def test_a_strike_at_any_point_costs_the_kept_state_at_most(
    fsdp2: Path, tmp_path: Path, record_property: Callable[[str, object], None], strike: tuple[str, str, str]
) -> None:
    """Nobody says that a state is kept of which a part is missing, and nobody waits longer than the limits say."""
    stage, who, number = strike
    name, keeper = _STRUCK[who]
    with _job(fsdp2, tmp_path, _LIMIT) as job:
        walk = _Walk(job, signal.Signals[number])
        walk.begin()
        struck = walk.strike_at_stop if stage == "stop" else walk.strike_at_resume
        for point in walk.points(stage, name):
            struck(name, point, keeper=keeper)
        record_property("points, and seconds at most", (len(walk.seconds), round(max(walk.seconds), 1)))
        record_property("outcomes", " ".join(walk.outcomes))
        walk.stop()
    assert_exact_states(fsdp2, tmp_path, job.rounds)
    limit = max(_LIMIT, _LEFT) if keeper is None else _LIMIT_OF_KEEPERS
    assert max(walk.seconds) < _BESIDES + (limit if number == "SIGSTOP" else 0)


def test_a_state_is_kept_also_if_a_keeper_takes_longer_than_a_collective_waits(fsdp2: Path, tmp_path: Path) -> None:
    """As with parts of many gigabytes. The ranks that have given theirs away wait for those that put theirs."""
    with _job(fsdp2, tmp_path, limit=2.0) as job:
        (job.rounds.root / "slow-keeper-c").touch()
        walk = _Walk(job, signal.SIGKILL)
        walk.begin()
        assert walk.stop() == walk.resume()


def test_a_kept_state_is_used_also_if_changes_go_through_checkpoints(fsdp2: Path, tmp_path: Path) -> None:
    """With `Limits(handing=0)`."""
    with _job(fsdp2, tmp_path, _LIMIT) as job:
        for name in _HOSTS:
            (job.rounds.root / f"hands-nothing-{name}").touch()
        walk = _Walk(job, signal.SIGKILL)
        walk.begin()
        assert walk.stop() == walk.resume()


def test_a_kept_state_that_takes_too_long_to_divide_is_given_up(fsdp2: Path, tmp_path: Path) -> None:
    """After two rounds the job goes back to its newest checkpoint."""
    with _job(fsdp2, tmp_path, limit=2.0) as job:
        walk = _Walk(job, signal.SIGKILL)
        walk.begin()
        (saved,) = job.saved_steps()
        walk.stop()
        (job.rounds.root / "slow-transfer-c").touch()
        job.supervisor.direct()
        job.rounds.start(*_HOSTS)
        for _ in range(2):
            job.rounds.until_lost(*_HOSTS)
            job.rounds.form(*_HOSTS)
        assert walk.goes_on_from() == saved
