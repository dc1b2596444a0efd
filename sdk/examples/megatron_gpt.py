"""Megatron-core with tensor parallelism: all ranks save with `dist_checkpointing` at one agreed step.

torchrun --nproc-per-node 4 megatron_gpt.py DIRECTORY [STEPS]
"""

from __future__ import annotations

import os
import sys
from typing import Any, Iterator

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

import kubeai.elastic as kubeai
from kubeai.elastic.integrations.megatron import MegatronCheckpoints

_TENSOR_PARALLEL = 2
_BATCHES = 4
"""Of a step, over all ranks."""
_VOCABULARY = 64
_LENGTH = 16


def steps_from(first: int, steps: int) -> Iterator[list[torch.Tensor]]:
    """Yield this rank's batches of each step from `first` on. The ranks share them, however many there are."""
    for step in range(first, steps):
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(_VOCABULARY, (_BATCHES, 2, 1), generator=generator)
        tokens = (starts + torch.arange(_LENGTH + 1)) % _VOCABULARY
        yield list(tokens[parallel_state.get_data_parallel_rank() :: parallel_state.get_data_parallel_world_size()])


def main(directory: str, steps: int) -> None:
    """Train."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=_TENSOR_PARALLEL)
    torch.manual_seed(0)
    model_parallel_cuda_manual_seed(0)
    config = TransformerConfig(num_layers=2, hidden_size=16, num_attention_heads=4, use_cpu_initialization=True)
    gpt = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=_VOCABULARY, max_sequence_length=_LENGTH).cuda()
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), gpt)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-2), [model])

    def state(*, is_loading: bool) -> dict[str, Any]:
        parameters = gpt.sharded_state_dict()
        return {"model": parameters, "optimizer": optimizer.sharded_state_dict(parameters, is_loading=is_loading)}

    def restore(loaded: dict[str, Any]) -> None:
        gpt.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])

    kubeai.init(collective=True)  # a save needs all ranks
    checkpoints = MegatronCheckpoints(directory, state, restore)
    first = checkpoints.load()
    mask = torch.ones(1, 1, _LENGTH, _LENGTH, dtype=torch.bool, device="cuda").triu(1)
    positions = torch.arange(_LENGTH, device="cuda").expand(2, -1)
    for _, batches in kubeai.steps(steps_from(first, steps), checkpoints.save, first=first, every=50):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        for batch in batches:
            tokens = batch.cuda()
            loss = model(tokens[:, :-1], positions, mask, labels=tokens[:, 1:]).mean() / len(batches)
            loss.backward()
        finalize_model_grads([model])
        optimizer.step()
    checkpoints.save(steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
