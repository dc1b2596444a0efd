"""The sample jobs are what the supervisor looks after."""

from pathlib import Path

import msgspec
import pytest

from supervisor.domain.ids import JobName
from supervisor.jobs.kind import AnyKind, JobState
from supervisor.jobs.registry import KINDS
from tests.testkit.yaml_text import document

EXAMPLES = Path(__file__).parents[2] / "examples"
_FROM_THE_API_SERVER = {
    "namespace": "training",
    "uid": "u",
    "resourceVersion": "7",
    "creationTimestamp": "2026-01-05T18:02:00Z",
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_sample_of_each_kind_is_elastic_and_can_resume_smaller(kind: AnyKind) -> None:
    sample = document((EXAMPLES / f"{kind.name}.yaml").read_text(encoding="utf-8"))
    sample["metadata"] |= _FROM_THE_API_SERVER
    job = kind.decode(msgspec.json.encode(sample))
    observed = kind.observe(JobState(JobName("training/resnet"), job, ()), None, 0.0)
    assert observed is not None, "It is not opted in."
    spec = observed.spec
    assert (spec.min_workers, spec.requested_workers, spec.start_workers) == (2, 4, 2)
    assert spec.max_wait_seconds == 3600


def test_there_is_no_other_sample() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.yaml")} == {kind.name for kind in KINDS}
