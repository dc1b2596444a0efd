"""What holds for every kind of job, for JobSets under their real controller."""

import pytest

from tests.controlplane.kinds.kind_contract import KindContract
from tests.controlplane.kinds.kind_support import JOB_SET

pytestmark = pytest.mark.long


class TestJobSets(KindContract):
    support = JOB_SET
