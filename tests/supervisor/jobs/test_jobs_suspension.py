"""Jobs of an operator that is too old to suspend them, such as those that Arena's artifacts contain."""

import copy
from typing import Any

import pytest

from servicekit.kubernetes.errors import RefusedError
from supervisor.domain.job import Result
from supervisor.jobs.kind import ActionProgress
from tests.supervisor.jobs.every_kind import BY_NAME, OPTED_IN, spec_of
from tests.supervisor.jobs.hub_member import HubMember


class OldDefinition(HubMember):
    """A cluster whose definition of the kind has no run policy: the API server drops what it does not know."""

    def _wrote(self, changed: dict[str, Any]) -> Any:
        self.writes += 1
        self.object = copy.deepcopy(changed)
        self.object["spec"].pop("runPolicy", None)
        self.object["metadata"]["labels"] = {}
        self.read = self._decoded(self.object)
        return self.read


@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob", "tfjob"])
async def test_a_suspension_that_the_api_server_drops_is_an_error_and_not_a_wait(kind: str) -> None:
    cluster = OldDefinition(BY_NAME[kind], spec_of(kind, 3), OPTED_IN)
    actions = cluster.actions()
    with pytest.raises(RefusedError, match=r"dropped spec\.runPolicy\.suspend"):
        await actions.suspend(cluster.state)
    with pytest.raises(RefusedError, match=r"dropped spec\.runPolicy\.suspend"):
        await actions.end(cluster.state, Result.TIMED_OUT)
    assert cluster.writes == 2


@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob", "tfjob"])
async def test_where_a_queue_owns_the_field_nobody_misses_it(kind: str) -> None:
    """Its client leaves the field out of every write, and the queue suspends the job by its Workload."""
    cluster = OldDefinition(BY_NAME[kind], spec_of(kind, 3), OPTED_IN)
    assert await cluster.actions(suspends=False).suspend(cluster.state) is ActionProgress.PENDING
