"""What holds for every kind of job, for MPIJobs under the real mpi-operator."""

import pytest

from tests.controlplane.kinds.kind_contract import KindContract
from tests.controlplane.kinds.kind_support import MPI_JOB

pytestmark = pytest.mark.long


class TestMpiJobs(KindContract):
    support = MPI_JOB
