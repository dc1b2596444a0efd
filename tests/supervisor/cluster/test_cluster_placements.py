from datetime import UTC, datetime
from itertools import permutations

from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.objects import Pod, PodPhase, placements_of
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host


def _pod(letters: str, phase: PodPhase, *, ends: bool = False) -> Pod:
    return Pod(
        metadata=Metadata(name=f"j-0-{letters}", uid=letters, resource_version="1"),
        owner=None,
        host=Host("j-0"),
        node=f"node-{letters}",
        phase=phase,
        deleted_at=datetime.now(UTC) if ends else None,
    )


def test_of_the_pods_that_are_one_host_the_one_counts_that_stays() -> None:
    """Whatever their order: one has failed, one is about to end, and one replaces them."""
    failed, ending, new = (
        _pod("a", PodPhase.FAILED),
        _pod("b", PodPhase.RUNNING, ends=True),
        _pod("c", PodPhase.PENDING),
    )
    for pods in permutations([failed, ending, new]):
        assert placements_of(pods) == {Host("j-0"): Placement("c", Host("node-c"), name="j-0-c")}
    assert placements_of([failed, ending]) == {
        Host("j-0"): Placement("b", Host("node-b"), terminating=True, name="j-0-b")
    }
    assert placements_of([failed]) == {}
