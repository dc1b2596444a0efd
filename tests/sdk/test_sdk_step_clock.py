"""What a process learns about the time that its steps and checkpoints take."""

from kubeai.elastic.messages import TrainingPace
from kubeai.elastic.reporter import StepTimer


def test_nothing_is_known_at_first() -> None:
    assert StepTimer().sample(None, 100.0) == TrainingPace(None, None, None)


def test_the_fastest_window_counts() -> None:
    """Steps of 0.1 s, then slower ones: who expects a rank too late at a step would propose one that it has passed."""
    clock = StepTimer()
    for step, now in ((0, 100.0), (10, 101.0), (12, 102.0), (14, 103.0)):
        pace = clock.sample(step, now)
    assert pace.step_seconds == 0.1


def test_a_window_is_not_shorter_than_a_second() -> None:
    """A sample that falls just behind the end of a step would otherwise make it look short."""
    clock = StepTimer()
    assert [clock.sample(step, now).step_seconds for step, now in ((0, 0.0), (1, 0.5), (1, 1.0), (2, 1.5))] == [
        None,
        None,
        None,
        0.75,
    ]


def test_old_windows_are_forgotten() -> None:
    clock = StepTimer()
    for step, now in ((0, 0.0), (100, 1.0), *((100 + second, 1.0 + second) for second in range(1, 30))):
        pace = clock.sample(step, now)
    assert pace.step_seconds == 1.0


def test_a_rollback_is_no_step() -> None:
    """Elastic frameworks return to the last commit."""
    clock = StepTimer()
    for step, now in ((100, 0.0), (90, 2.0), (94, 4.0)):
        pace = clock.sample(step, now)
    assert pace.step_seconds == 0.5


def test_the_time_since_the_step_last_changed() -> None:
    clock = StepTimer()
    assert [clock.sample(step, now).unread_seconds for step, now in ((5, 10.0), (5, 13.0), (6, 14.0))] == [0, 3, 0]


def test_the_slowest_recent_checkpoint_counts() -> None:
    clock = StepTimer()
    for seconds in (9.0, *[2.0] * 19):
        clock.saves.append(seconds)
    assert clock.sample(0, 0.0).checkpoint_seconds == 9
    clock.saves.append(3.0)
    assert clock.sample(0, 0.0).checkpoint_seconds == 3
