"""Runs a script with Megatron-core on CPUs, for which Megatron-core is not made.

    megatron_on_cpu.py SCRIPT ARGUMENT …

Tensors that are to be on the GPU are on the CPU instead, gloo takes the place of NCCL, and the CPU's generator that of
the tracked ones of the GPU. The rest of Megatron-core is the real one: its layers, DistributedDataParallel, optimizers
and `dist_checkpointing`.
"""

import runpy
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode


class _OnCpu(TorchFunctionMode):  # type: ignore[misc]  # torch is not installed where types are checked.
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.backward:
            return torch.autograd.backward(*args)  # A test has replaced it, and calls this one.
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")  # Optimizers refuse other parameters.
        return result


def _stand_in() -> None:
    cuda: Any = torch.cuda
    cuda.current_device = lambda: "cpu"
    # Each name gets a function of its own, because torch's tables know functions by their identity.
    for name in ("set_device", "synchronize", "manual_seed"):
        setattr(cuda, name, lambda *_: None)
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.nn.Module.cuda = lambda module, *_: module
    _OnCpu().__enter__()
    initialize = dist.init_process_group
    dist.init_process_group = lambda: initialize("gloo")

    from megatron.core.tensor_parallel import random  # noqa: PLC0415 - it asks for the device when it is imported

    random.CudaRNGStatesTracker.fork = _untracked
    random.CudaRNGStatesTracker.add = lambda *_: None


def _untracked(*_: Any, **__: Any) -> AbstractContextManager[None]:
    return nullcontext()


if __name__ == "__main__":
    _stand_in()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
