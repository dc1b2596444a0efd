"""What holds for every kind of job, for PyTorchJobs and TFJobs under the real training-operator."""

import pytest

from tests.controlplane.kinds.kind_contract import KindContract
from tests.controlplane.kinds.kind_support import PYTORCH_JOB, PYTORCH_ROUNDS, TF_JOB
from tests.controlplane.kinds.trainingoperator.trainingoperator_jobs import PyTorchJobs, PyTorchRounds, TfJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace

pytestmark = pytest.mark.long


class TestPyTorchJobs(KindContract):
    support = PYTORCH_JOB

    @pytest.fixture
    def jobs(self, pytorch: PyTorchJobs) -> PyTorchJobs:
        return pytorch


class TestPyTorchJobsWithRounds(KindContract):
    support = PYTORCH_ROUNDS

    @pytest.fixture
    def jobs(self, _training_operator: None, api: Api, namespace: Namespace) -> PyTorchRounds:
        return PyTorchRounds(api, namespace)


class TestTfJobs(KindContract):
    support = TF_JOB

    @pytest.fixture
    def jobs(self, tensorflow: TfJobs) -> TfJobs:
        return tensorflow
