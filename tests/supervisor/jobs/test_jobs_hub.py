"""Jobs that a hub of many clusters has created in this one."""

import msgspec
import pytest

from supervisor.jobs.registry import KINDS
from tests.supervisor.jobs.every_kind import BY_NAME


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
@pytest.mark.parametrize(("labels", "is_from_hub"), [({"karmada.io/managed": "true"}, True), ({}, False)])
def test_a_job_of_a_hub_is_known_by_its_label(kind: str, labels: dict[str, str], *, is_from_hub: bool) -> None:
    metadata = {"name": "bert", "namespace": "team", "uid": "job-uid", "resourceVersion": "7", "labels": labels}
    job = BY_NAME[kind].decode(msgspec.json.encode({"metadata": metadata}))
    assert job.from_hub is is_from_hub
