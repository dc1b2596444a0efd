"""What holds for every kind of job, for TrainJobs under their real controllers."""

import pytest

from tests.controlplane.kinds.kind_support import TRAIN_JOB
from tests.controlplane.kinds.trainjob.trainjob_contract import TrainJobContract

pytestmark = pytest.mark.long


class TestTrainJobs(TrainJobContract):
    support = TRAIN_JOB
