"""The lists of hosts that a TrainingJob's ConfigMap gets before another run."""

import pytest

from supervisor.domain.ids import Host
from supervisor.jobs.trainingjob.kind import host_lists


@pytest.mark.parametrize(
    ("before", "slots"),
    [("w-0:4\n", 4), ("", 2), ("w-0\n", 2), ("w-0:0\n", 2), ("w-0:" + "9" * 5000, 2), ("w-0:10001\n", 2)],
    ids=["written", "none", "no-slots", "zero", "5000-digits", "too-many"],
)
def test_slots_are_the_operators_within_their_bound(before: str, slots: int) -> None:
    """Whoever may edit the ConfigMap can write any number there; the job's own then counts."""
    lists = host_lists({"hostfile": before}, [Host("w-0"), Host("w-1")], 2)
    assert lists == {"hostfile": f"w-0:{slots}\nw-1:{slots}\n"}
