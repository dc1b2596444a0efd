"""kubeai.torch: which sharded states go from memory to memory, and why others go through a checkpoint."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.frameworks_world import FrameworksScript

_SAYS = "kubeai: at a change the state goes through a checkpoint: "


@pytest.fixture(scope="module")
def reasons(fsdp2: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what one process answers."""
    script = FrameworksScript(fsdp2, Path(__file__).with_name("frameworks_reasons.py"))
    environ = {**os.environ, **script.environment(tmp_path_factory.mktemp("reasons")), "CUDA_VISIBLE_DEVICES": ""}
    command = [str(fsdp2 / "bin" / "python"), "-W", "ignore", str(script.path)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environ)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


pytestmark = pytest.mark.brief


def test_a_state_that_is_not_divided_by_rows_over_all_ranks_goes_through_a_checkpoint(reasons: Any) -> None:
    no_rows, not_even = "model.table is not divided by rows alone", "model.table is not divided evenly"
    not_all = "the mesh of model.table is not one dimension of all ranks"
    assert reasons["alone"] == {
        "a model of FSDP2": None,
        "nothing is divided": "none of its tensors is divided among the ranks",
        "two dimensions": not_all,
        "columns": no_rows,
        "whole in each rank": no_rows,
        "a row is missing": not_even,
        "not in rows": "model.table is not in the order of its rows",
        "another device": "model.table is on meta, and the process group takes cpu",
        "parts of another kind": "model.table has parts of _OfItsOwn",
        "a tensor of another kind": "it has a _OfItsOwn",
        "a named tuple": "it has a _Named",
        "a size, a tuple and a parameter": None,
    }
    assert reasons["of four"] == {"the last of three rows": None, "some ranks": not_all, "another order": not_all}


def test_a_zero_optimizer_goes_from_memory_to_memory_with_ddp(reasons: Any) -> None:
    """ValueErrors refuse one that overlaps with DDP, and one that does not divide its state among all ranks."""
    assert reasons["of zero"] == {
        "a model of DDP": None,
        "channels last": "model.module.weight is not in the order of its rows",
        "overlapping": "a ZeroRedundancyOptimizer with overlap_with_ddp=True cannot be saved or handed over",
        "some ranks": "a ZeroRedundancyOptimizer with a process group of some ranks cannot be saved or handed over",
        "another optimizer": "none of its tensors is divided among the ranks",
    }


def test_a_gpu_needs_memory_for_two_further_parts_and_a_half(reasons: Any) -> None:
    """Memory that torch has in its cache counts as free."""
    lacks = "the GPU has not the memory for two parts"
    assert reasons["memory"] == [None, None, lacks, lacks]


def test_a_state_that_does_not_fit_into_the_time_goes_through_a_checkpoint(reasons: Any) -> None:
    """Without a deadline, shortly before one, and long before."""
    assert reasons["time"] == [True, False, True]


def test_the_reason_is_said_once(reasons: Any) -> None:
    assert reasons["said"] == {
        "enough": "handed over",
        "none": "",
        "otherwise": f"{_SAYS}`build` divides it in another way in another round\n",
        "thread": f"{_SAYS}the loop is not in the main thread, so SIGTERM would end a rank that still gives its part\n",
    }


def test_nothing_is_given_for_another_number_of_ranks(reasons: Any) -> None:
    assert reasons["given"] == ["step 7", "the next round was told for 2 ranks instead of 1"]


def test_copies_have_what_is_whole_in_each_rank_once(reasons: Any) -> None:
    """And a state that one rank owns as it is."""
    found = reasons["dealt"]
    state = {f"optimizer.state.0.{name}": [4, 2] for name in ("exp_avg", "exp_avg_sq")}
    assert found["shapes"] == [{"model.module.weight": [2, 2], **state}] * 2
    assert found["owners"] == [None, None]
    assert found["together"] is True


def test_two_ranks_with_one_state_of_random_numbers_are_seeded_anew_in_different_ways(reasons: Any) -> None:
    first, again, other = reasons["drawn"]
    assert first == again
    assert all(of_one != of_other for of_one, of_other in zip(first, other, strict=True))
