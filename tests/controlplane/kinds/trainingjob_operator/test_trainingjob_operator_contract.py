"""What holds for every kind of job, for TrainingJobs under our own operator."""

import pytest

from tests.controlplane.kinds.kind_contract import KindContract
from tests.controlplane.kinds.kind_support import OWN_TRAINING_JOB

pytestmark = pytest.mark.long


class TestOwnTrainingJobs(KindContract):
    support = OWN_TRAINING_JOB
