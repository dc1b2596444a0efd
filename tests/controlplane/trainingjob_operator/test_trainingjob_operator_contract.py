"""What holds for every kind of job, for TrainingJobs under our own operator."""

from tests.controlplane.kind_contract import KindContract
from tests.controlplane.kind_support import OWN_TRAINING_JOB


class TestOwnTrainingJobs(KindContract):
    support = OWN_TRAINING_JOB
