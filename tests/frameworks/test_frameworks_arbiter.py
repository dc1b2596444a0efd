"""The ranks settle an agreement through the real store of torch.distributed."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.brief

_SDK = Path(__file__).parents[2] / "sdk"

# Rank 1 has waited in vain for the commit that the others know.
_RANK = """
import sys
import torch.distributed as dist
from kubeai.elastic.agreement import StoreArbiter

arbiter = StoreArbiter(sys.modules)
assert arbiter.settle(1, 1, go_through=True) is None
dist.init_process_group("gloo")
rank = dist.get_rank()
for epoch, first in ((1, 1), (2, 0)):
    if rank == first:
        outcome = arbiter.settle(1, epoch, go_through=rank != 1)
    dist.barrier()
    if rank != first:
        outcome = arbiter.settle(1, epoch, go_through=rank != 1)
    assert outcome is (first != 1), outcome
dist.destroy_process_group()
assert arbiter.settle(1, 3, go_through=True) is None
"""


def test_the_first_rank_to_write_decides_for_all(frameworks: Path, tmp_path: Path) -> None:
    """Whether it goes on or stops. Before and after the process group there is no store."""
    script = tmp_path / "rank.py"
    script.write_text(_RANK)
    command = [str(frameworks / "bin" / "python"), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    done = subprocess.run(
        [*command, "3", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(_SDK), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
