"""Runs a script with TorchTitan on CPUs, for which TorchTitan is not made.

    torchtitan_on_cpu.py SCRIPT ARGUMENT …

Stand-ins take the place of what needs a GPU: its name and memory, the attention, kernels of Triton, and two collectives
that gloo does not have. The rest of TorchTitan is the real one: trainer, FSDP2, optimizers, schedules and checkpoints.
"""

import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch._utils
import torch.nn.functional as F  # noqa: N812 - torch's users know it by this name
from torch.distributed.fsdp import FSDPModule

_KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"


def _stand_in() -> None:
    _be_a_device()
    # Models with experts call these kernels; the others only import them.
    kernels = ModuleType(_KERNELS)
    kernels.__getattr__ = lambda _: None  # type: ignore[method-assign]
    sys.modules[_KERNELS] = kernels

    from torchtitan.distributed import utils  # noqa: PLC0415 - it asks for the device when it is imported
    from torchtitan.models.common.attention import FlexAttention  # noqa: PLC0415

    FlexAttention._compiled_flex_attn = staticmethod(_attention)
    utils.set_pg_timeouts = lambda **_: None  # by a barrier of devices
    _sum_without_factor()


def _be_a_device() -> None:
    torch._utils._get_available_device_type = lambda: "cpu"
    cpu: Any = torch.cpu
    cpu.get_device_name = lambda _: "CPU"
    cpu.get_device_properties = lambda _: SimpleNamespace(total_memory=1 << 30)
    cpu.memory_stats = lambda _: {}
    cpu.reset_peak_memory_stats = cpu.empty_cache = lambda: None


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float | None, enable_gqa: bool, **_: Any
) -> tuple[torch.Tensor, None]:
    """Each sequence is a single document."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa), None


def _sum_without_factor() -> None:
    """TorchTitan divides gradients itself, and sets a factor of 1, with which torch asks gloo for a scaled sum."""
    set_factor = FSDPModule.set_gradient_divide_factor

    def set_without(module: FSDPModule, factor: float) -> None:
        module.set_force_sum_reduction_for_comms(True)
        set_factor(module, factor)

    FSDPModule.set_gradient_divide_factor = set_without


if __name__ == "__main__":
    _stand_in()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
