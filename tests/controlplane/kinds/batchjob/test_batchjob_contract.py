"""What holds for every kind of job, for Indexed Jobs under Kubernetes' own controller."""

import pytest

from tests.controlplane.kinds.kind_contract import KindContract
from tests.controlplane.kinds.kind_support import INDEXED_JOB

pytestmark = pytest.mark.long


class TestIndexedJobs(KindContract):
    support = INDEXED_JOB
