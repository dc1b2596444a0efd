"""The sample jobs are what the supervisor looks after."""

from pathlib import Path

import msgspec
import pytest

from supervisor.domain.ids import JobName
from supervisor.jobs.kind import AnyKind, JobState
from supervisor.jobs.registry import KINDS
from tests.controlplane.kinds.kind_support import ALL
from tests.testkit.yaml_text import document

EXAMPLES = Path(__file__).parents[2] / "examples"
_FROM_THE_API_SERVER = {
    "namespace": "training",
    "uid": "u",
    "resourceVersion": "7",
    "creationTimestamp": "2026-01-05T18:02:00Z",
}


# The size of others is known once their controller has made something of them.
_KINDS = [kind for kind in KINDS if kind.dependent is None]


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.name)
def test_the_sample_of_each_kind_can_resume_smaller_where_its_controller_lets_it(kind: AnyKind) -> None:
    """It has the sizes that the tests under the real controllers expect of it."""
    [least] = {support.documented[0][0] for support in ALL if support.kind == kind.name}
    sample = document((EXAMPLES / f"{kind.name}.yaml").read_text(encoding="utf-8"))
    sample["metadata"] |= _FROM_THE_API_SERVER
    job = kind.decode(msgspec.json.encode(sample))
    observed = kind.observe(JobState(JobName("training/resnet"), job, ()), None, 0.0)
    assert observed is not None, "It is not opted in."
    spec = observed.spec
    assert (spec.min_workers, spec.requested_workers, spec.start_workers) == (least, 4, least)
    assert spec.max_wait_seconds == 3600


def test_there_is_no_other_sample() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.yaml")} == {kind.name for kind in KINDS}
