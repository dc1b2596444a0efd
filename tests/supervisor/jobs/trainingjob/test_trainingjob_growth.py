"""A TrainingJob's operator is asked for more workers only when that is harmless."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from supervisor.cluster.objects import Pod
from supervisor.domain.ids import Host
from supervisor.jobs.trainingjob.kind import TRAININGJOB
from supervisor.jobs.trainingjob.scaleouts import growable
from tests.supervisor.jobs.trainingjob.trainingjob_objects import (
    COMMAND,
    MADE,
    OPTED_IN,
    PREFIX,
    State,
    job,
    pod,
    spec,
    state,
    workers,
)

SMALLER = {**OPTED_IN, f"{PREFIX}requested-workers": "4"}


def names(numbers: Iterable[int]) -> list[str]:
    return [f"bert-worker-{number}" for number in numbers]


def seen(
    pods: Sequence[Pod] | None = None,
    *,
    targets: Iterable[int] = (0, 1),
    current: Iterable[int] = (0, 1),
    phase: str = "Running",
    **parts: Any,
) -> State:
    status = {"phase": phase, "targetWorkers": names(targets), "currentWorkers": names(current)}
    parts = {"annotations": SMALLER, "asked": spec(2), **parts}
    return state(job(status=status, **parts), [*(workers(2) if pods is None else pods), pod("launcher")])


def could_add(one: State, *, namesakes: bool = False) -> int:
    return growable(one, namesakes=namesakes)


def test_a_job_that_was_resumed_smaller_grows_to_its_own_size() -> None:
    assert could_add(seen()) == 2
    three = [*workers(2), pod("worker-5", labels={**pod("worker-5").labels, "scaleout-name": "before"})]
    assert could_add(seen(three, targets=(0, 1, 5), current=(0, 1, 5))) == 1
    assert could_add(seen(workers(4), targets=range(4), current=range(4))) == 0


def test_a_job_that_has_its_own_size_does_not_grow() -> None:
    """What it has lost is its operator's to replace, or is not to be replaced."""
    assert could_add(seen(annotations=OPTED_IN, asked=spec(4), targets=range(4))) == 0


@pytest.mark.parametrize("phase", ["", "Created", "Scaling", "Succeeded", "Failed", "Suspended", "what"])
def test_it_grows_while_its_operator_has_nothing_else_to_do(phase: str) -> None:
    assert could_add(seen(phase=phase)) == 0


def test_nothing_is_asked_for_a_job_that_is_to_be_suspended_or_goes() -> None:
    """It would be in the way of the next run."""
    assert could_add(seen(annotations={**SMALLER, f"{PREFIX}job-suspended": "true"})) == 0
    assert could_add(seen(deletionTimestamp="2023-11-14T22:14:20Z")) == 0


def test_a_job_that_a_person_has_scaled_in_stays_so() -> None:
    assert could_add(seen(workers(1), targets=(0,), current=(0,))) == 0


def test_a_namesake_in_another_namespace_forbids_it() -> None:
    assert could_add(seen(), namesakes=True) == 0


@pytest.mark.parametrize(
    ("pods", "targets", "current"),
    [
        ([*workers(2), pod("worker-2")], (0, 1), (0, 1, 2)),
        ([*workers(2), pod("worker-10")], (0, 9), (0, 1, 10)),
        ([*workers(2), pod("worker-2", phase="Pending")], (0, 1, 2), (0, 1)),
        ([*workers(2), pod("worker-2", deletionTimestamp="2023-11-14T22:14:20Z")], (0, 1, 2), (0, 1, 2)),
        (workers(1), (0, 1), (0, 1)),
        (workers(2), (0, 1), (0,)),
        ([], (0, 1), ()),
    ],
    ids=["no-target", "no-target-of-two-digits", "pending", "ending", "lost", "not-listed-yet", "none"],
)
def test_pods_that_differ_from_the_operators_lists_forbid_it(
    pods: Sequence[Pod], targets: Sequence[int], current: Sequence[int]
) -> None:
    """It would take somebody's pods for its own, or list a host that is gone."""
    assert could_add(seen(pods, targets=targets, current=current)) == 0


def test_a_worker_that_was_replaced_by_another_number_is_no_obstacle() -> None:
    """A replaced worker that runs beside its replacement is below the highest target."""
    assert could_add(seen([*workers(2), pod("worker-2")], targets=(0, 2), current=(0, 1, 2))) == 2


@pytest.mark.parametrize(
    ("command", "could"),
    [
        (COMMAND, 2),
        (COMMAND.replace("--max-np $((${maxWorkers}*${gpus}))", ""), 2),
        (COMMAND.replace("$((${maxWorkers}*${gpus}))", "4"), 2),
        (COMMAND.replace("$((${maxWorkers}*${gpus}))", "3"), 0),
        (COMMAND.replace("$((${maxWorkers}*${gpus}))", "9" * 5000), 2),
        (COMMAND.replace("--max-np $((${maxWorkers}", "--max-np=$((${workers}"), 0),
        (COMMAND.replace("--max-np $((${maxWorkers}", "--max-num-proc $(( $workers "), 0),
        (COMMAND.replace("--host-discovery-script /etc/edl/discover_hosts.sh", "-H a:1,b:1"), 0),
    ],
    ids=["arena", "no-most", "enough", "too-few", "5000-digits", "as-begun", "as-begun-otherwise", "fixed-hosts"],
)
def test_the_command_has_to_have_use_for_more(command: str, could: int) -> None:
    """Workers that it never starts anything on would hold their GPUs for nothing."""
    assert could_add(seen(asked=spec(2, command=command))) == could


def test_what_a_scale_out_makes_is_the_jobs_once_it_is_listed() -> None:
    """Until then nothing runs there: it would count as one more that may be lost."""
    made = pod("worker-2", labels={**pod("worker-2").labels, "scaleout-name": "grow"})
    for phase, targets, current, count in (
        ("Scaling", (0, 1), (0, 1), 2),
        ("Running", (0, 1, 2), (0, 1), 3),
        ("Running", (0, 1), (0, 1, 2), 3),
    ):
        value = TRAININGJOB.observe(
            seen([*workers(2), made], targets=targets, current=current, phase=phase), None, MADE
        )
        assert value is not None
        assert len(value.observed.hosts) == count
        assert (Host("bert-worker-2") in value.observed.hosts) == (count > 2)
