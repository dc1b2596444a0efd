"""What holds for every kind of job, for TrainingJobs under the stand-in for et-operator."""

import pytest

from tests.controlplane.kinds.kind_contract import KindContract
from tests.controlplane.kinds.kind_support import TRAINING_JOB

pytestmark = pytest.mark.long


class TestTrainingJobs(KindContract):
    support = TRAINING_JOB
