"""What holds for every kind of job, for those of the real Volcano."""

import pytest

from tests.controlplane.kinds.kind_contract import KindContract
from tests.controlplane.kinds.kind_support import VOLCANO_JOB

pytestmark = pytest.mark.long


class TestVolcanoJobs(KindContract):
    support = VOLCANO_JOB
