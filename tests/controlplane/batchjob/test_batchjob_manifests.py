"""The manifests that users copy, before the real API server."""

import re
from pathlib import Path

import msgspec
import pytest

from supervisor.domain.ids import JobName
from supervisor.jobs.batchjob.kind import BatchJobKind
from supervisor.jobs.kind import JobState
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.yaml_text import document

pytestmark = pytest.mark.long

_ROOT = Path(__file__).parents[3]
_KIND = BatchJobKind()


@pytest.mark.brief
async def test_the_manifests_of_page_and_sample_are_accepted_and_supervised(api: Api, namespace: Namespace) -> None:
    """As the API server completes them, with no field that it does not know."""
    page = (_ROOT / "docs" / "kinds" / f"{_KIND.name}.md").read_text("utf-8")
    sample = (_ROOT / "examples" / f"{_KIND.name}.yaml").read_text("utf-8")
    path = f"/apis/batch/v1/namespaces/{namespace.name}/jobs?dryRun=All&fieldValidation=Strict"
    for manifest in (*re.findall(r"```yaml\n(.*?)```", page, re.DOTALL), sample):
        accepted = await api.create(path, document(manifest))
        accepted["metadata"].setdefault("resourceVersion", "1")
        job = _KIND.decode(msgspec.json.encode(accepted))
        supervised = _KIND.observe(JobState.of(_KIND, JobName("training/batchjob.resnet"), job, []), None, 0.0)
        assert supervised is not None
        assert (supervised.spec.min_workers, supervised.spec.requested_workers) == (2, 4)
