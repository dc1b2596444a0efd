"""Asks why states cannot be handed over from memory to memory, and prints the answers as JSON for a test."""

import contextlib
import io
import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from kubeai.elastic import api
from kubeai.elastic.integrations.random_state import seed_anew
from kubeai.elastic.integrations.zero import zero_optimizers
from kubeai.torch import handover, parts
from kubeai.torch.decisions import NotFormed
from kubeai.torch.moves import PartClaim
from kubeai.torch.parts import DividedState, dealt, divided_tensors
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

_ROWS, _COLUMNS = 4, 2
_GIB = 2**30


class _Named(NamedTuple):
    value: int


class _OfItsOwn(torch.Tensor):  # type: ignore[misc]  # torch is not installed where types are checked
    """A kind of tensor that may have more in it."""


class _Held:
    """Has a state of this content."""

    def __init__(self, content: Any) -> None:
        self._content = content

    def state_dict(self) -> dict[str, Any]:
        return {"table": self._content}


def _reason(content: Any, **others: Any) -> str | None:
    states = {"model": _Held(content), **{name: _Held(each) for name, each in others.items()}}
    return DividedState(states).reason_against()


def _divided(local: torch.Tensor, mesh: DeviceMesh, *placements: Any) -> Any:
    return DTensor.from_local(local, mesh, placements or (Shard(0),), run_check=False)


def _alone() -> dict[str, str | None]:
    """The reasons that one rank finds."""
    mesh, rows = init_device_mesh("cpu", (1,)), torch.ones(_ROWS, _COLUMNS)
    divided = _divided(rows, mesh)
    longer = {"shape": torch.Size((_ROWS + 1, _COLUMNS)), "stride": (_COLUMNS, 1)}
    model = fully_shard(torch.nn.Linear(_COLUMNS, _ROWS), mesh=mesh)
    return {
        "a model of FSDP2": DividedState({"model": model}).reason_against(),
        "nothing is divided": _reason(rows),
        "two dimensions": _reason(_divided(rows, init_device_mesh("cpu", (1, 1)), Replicate(), Shard(0))),
        "columns": _reason(_divided(rows, mesh, Shard(1))),
        "whole in each rank": _reason(_divided(rows, mesh, Replicate())),
        "a row is missing": _reason(DTensor.from_local(rows, mesh, (Shard(0),), run_check=False, **longer)),
        "not in rows": _reason(_divided(torch.ones(_COLUMNS, _ROWS).t(), mesh)),
        "another device": _reason(_divided(rows.to("meta"), mesh)),
        "parts of another kind": _reason(_divided(rows.as_subclass(_OfItsOwn), mesh)),
        "a tensor of another kind": _reason(divided, other=rows.as_subclass(_OfItsOwn)),
        "a named tuple": _reason(divided, other=[_Named(1)]),
        "a size, a tuple and a parameter": _reason(divided, other=(rows.shape, (1, {}), torch.nn.Parameter(rows))),
    }


def _reason_of_a_group(model: Any) -> str:
    """Return the message that a rank gets if its ZeroRedundancyOptimizer has fewer ranks than the job."""
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    sizes = {optimizer.process_group: 1, None: 2}
    with _set(dist, get_world_size=lambda group=None: sizes[group]):
        try:
            zero_optimizers([optimizer])
        except ValueError as error:
            return str(error)
    return ""


def _of_zero() -> dict[str, str | None]:
    """The reasons that one rank finds with a ZeroRedundancyOptimizer of DDP."""
    model = DistributedDataParallel(torch.nn.Linear(_COLUMNS, _ROWS))
    columns = DistributedDataParallel(torch.nn.Conv2d(_COLUMNS, _ROWS, 3).to(memory_format=torch.channels_last))

    def reason(model: Any, **options: Any) -> str | None:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **options)
        try:
            zero_optimizers([optimizer])
        except ValueError as error:
            return str(error)
        return DividedState({"model": model, "optimizer": optimizer}).reason_against()

    plain = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    return {
        "a model of DDP": reason(model),
        "channels last": reason(columns),
        "overlapping": reason(model, overlap_with_ddp=True),
        "some ranks": _reason_of_a_group(model),
        "another optimizer": DividedState(plain).reason_against(),
    }


def _of_four(rank: int) -> dict[str, str | None]:
    """The reasons that one of four ranks finds, with a group that sends nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    vars(handover).update(device_type=lambda: "cpu")
    every, last = DeviceMesh("cpu", [0, 1, 2, 3]), torch.ones(0, _COLUMNS)
    three = {"shape": torch.Size((3, _COLUMNS)), "stride": (_COLUMNS, 1)}
    found = {
        "the last of three rows": _reason(DTensor.from_local(last, every, (Shard(0),), run_check=False, **three)),
        "some ranks": _reason(_divided(last, DeviceMesh("cpu", [2, 3]))),
        "another order": _reason(_divided(last, DeviceMesh("cpu", [3, 2, 1, 0]))),
    }
    dist.destroy_process_group()
    return found


@contextlib.contextmanager
def _set(holder: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(holder, name) for name in values}
    for name, value in values.items():
        setattr(holder, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)


def _of_memory(free: int, cached: int) -> str | None:
    """The reason of a rank with a part of one GiB on a GPU, with so many GiB free, and so many in torch's cache."""
    divided = DividedState(
        {"model": _Held(_divided(torch.empty(_GIB, dtype=torch.uint8), init_device_mesh("cpu", (1,))))}
    )
    values = {
        "mem_get_info": (free * _GIB, 80 * _GIB),
        "memory_reserved": (9 + cached) * _GIB,
        "memory_allocated": 9 * _GIB,
    }
    calls: dict[str, Callable[[], Any]] = {name: lambda value=value: value for name, value in values.items()}  # type: ignore[misc]
    with _set(parts, device_type=lambda: "cuda"), _set(torch.cuda, **calls):
        return divided.reason_of_memory()


def _of_time(size: int, left: float | None) -> bool:
    with _set(api, seconds_left=lambda: left):
        return handover._fits(size, 10.0)


def _said(seconds: float, *, divides_alike: bool = True, in_a_thread: bool = False) -> str:
    """Return what two changes write to stderr."""
    states = {"model": _Held(_divided(torch.ones(_ROWS, _COLUMNS), init_device_mesh("cpu", (1,))))}
    found: list[Any] = []

    def change() -> None:
        found.append(handover.prepared(states, 0, seconds, divides_alike=divides_alike))

    written = io.StringIO()
    with contextlib.redirect_stderr(written):
        for _ in range(2):
            if in_a_thread:
                thread = threading.Thread(target=change)
                thread.start()
                thread.join()
            else:
                change()
    return "handed over" if all(found) else written.getvalue()


def _given(following: list[int | None]) -> str:
    divided = DividedState({"model": _Held(_divided(torch.ones(_ROWS, _COLUMNS), init_device_mesh("cpu", (1,))))})
    try:
        carried = handover.give(divided, 7, following, 10.0)
    except NotFormed as error:
        return str(error)
    return "nothing" if carried is None else f"step {carried.claim.step}"


def _dealt() -> dict[str, Any]:
    """Return what each of two parts of DDP with a ZeroRedundancyOptimizer keeps: the shapes of its rows, by tensor."""
    model = DistributedDataParallel(torch.nn.Linear(_COLUMNS, _ROWS, bias=False))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    model(torch.ones(1, _COLUMNS)).sum().backward()
    optimizer.step()
    state = DividedState({"model": model, "optimizer": optimizer})
    both = [dealt(state.rest, state.rows, PartClaim(7, 2, part, state.form)) for part in range(2)]
    weight = next(path for path in state.rows if path[0] == "model")
    return {
        "shapes": [{".".join(map(str, path)): list(each.shape) for path, each in rows.items()} for _, rows in both],
        "owners": [divided_tensors(rest)[weight].owner for rest, _ in both],
        "together": torch.equal(torch.cat([rows[weight] for _, rows in both]), state.rows[weight]),
    }


def _drawn(rank: int) -> list[float]:
    """Return what Python and torch draw once they are seeded anew as this rank, each time from the same state."""
    torch.manual_seed(7)
    seed_anew(rank)
    return [random.random(), torch.rand(()).item()]  # noqa: S311 - compared, not secret


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found = {
        "alone": _alone(),
        "of zero": _of_zero(),
        "memory": [_of_memory(3, 0), _of_memory(0, 3), _of_memory(2, 0), _of_memory(1, 1)],
        "time": [_of_time(1000, None), _of_time(10**9, 1e-6), _of_time(1000, 60.0)],
        "said": {
            "enough": _said(10.0),
            "none": _said(0.0),
            "otherwise": _said(10.0, divides_alike=False),
            "thread": _said(10.0, in_a_thread=True),
        },
        "drawn": [_drawn(rank) for rank in (0, 0, 1)],
        "given": [_given([0]), _given([0, 1])],
        "dealt": _dealt(),
    }
    dist.destroy_process_group()
    found["of four"] = _of_four(3)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
