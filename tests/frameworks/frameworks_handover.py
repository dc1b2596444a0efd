"""A training process of FSDP2 with AdamW, dropout and a schedule. It records what it sends at a change of rounds.

    … frameworks_handover.py KIND ROOT STEPS STEP_SECONDS NAME

KIND is `memory`, or `file`: then the state goes through checkpoints, or `hurried`: then there is no time for it, or
`otherwise`: then two ranks divide it in another way, or `exact-SECONDS`: then the state after a step is the same for
any number of ranks, and waiting has that limit. `copies-K` has a copy each K steps instead of checkpoints, `kept-K`
has them in files of its host, `both-K` has these and checkpoints, and `saved-K` a checkpoint each K steps. `stops`
stops when its supervisor says so, and keeps the state in memory then if checkpoints take too long, which they do for
`stops-K`: it has one each K steps. `exact_stops-SECONDS` is `exact-SECONDS`, and stops so. The test that has started it
says in files when all ranks pause, and which signal this process sends to itself in which step, or at which point of a
change, of a stop or of the copies. In files it also says what is slow.
"""

import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from kubeai.elastic import init
from kubeai.torch import handover, states
from kubeai.torch.ranks import RoundRanks
from kubeai.torch.state_keeper import KeeperClient
from kubeai.torch.training import Batch, Limits, PeerCopies, Sharded, train
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.frameworks.frameworks_member import RoundsMember, resources
from tests.frameworks.frameworks_stop_points import StopPoints
from tests.testkit import torch_exit

_ME = RoundsMember.from_arguments()
FEATURES, HIDDEN = 32, 3002
"""So many rows are not divided evenly among 3 or 4 ranks."""
_KIND, _, _NUMBER = _ME.kind.partition("-")
_SELDOM = 1000
EVERY = {
    **dict.fromkeys(("copies", "kept", "exact_stops"), _SELDOM),
    "saved": int(_NUMBER or 0),
    "stops": int(_NUMBER or _SELDOM),
}.get(_KIND, 10)
"""How many steps there are between two checkpoints."""
_SAMPLES, _GLOBAL_BATCH, PERIOD = 40, 12, 50
_ROOM = 300_000
"""Bytes of a file that hold the first copy of one of three ranks, which has no means of AdamW, and not the second."""
_STORAGE_SECONDS, _KEEPER_SECONDS = 2.0, 6.0
_IS_EXACT = _KIND.startswith("exact")
_STOPS = _KIND in ("stops", "exact_stops")
_HANDING = {"file": 0.0, "hurried": 1e-6}


class _Points:
    """Counts the points of a change at which another rank is waited for, and lets a test strike this process at one.

    Those of all copies are counted together.

    Posts one message after the other, and records what is sent without what measures the network.
    """

    def __init__(self) -> None:
        self._post = dist.batch_isend_irecv
        self._stage, self._point = "", 0
        self._of_copies = 0
        for name in ("prepared", "give", "whole", "spread"):
            self._wrap(states, name, self._begin)
        for name in ("least", "gathered", "broadcast"):
            self._wrap(handover, name, lambda _: self._reach())
        dist.batch_isend_irecv = self._posted

    def _wrap(self, module: Any, name: str, before: Callable[[str], None]) -> None:
        call = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before(name)
            return call(*args, **kwargs)

        setattr(module, name, wrapped)

    def _begin(self, stage: str) -> None:
        self._stage, self._point = stage, 0

    def _reach(self) -> None:
        _ME.record(event="point", stage=self._stage, point=self._point)
        self._strike(self._stage, self._point)
        self._point += 1

    def _strike(self, stage: str, point: int) -> None:
        struck = _ME.root / f"strike-{stage}-{point}-{_ME.name}"
        if struck.exists():
            _ME.record(event="struck", pid=os.getpid())
            os.kill(os.getpid(), int(struck.read_text(encoding="ascii")))

    def _posted(self, messages: list[Any]) -> list[Any]:
        works = []
        for message in messages:
            if threading.current_thread().name == "kubeai-copies":
                self._strike("copies", self._of_copies)
                self._of_copies += 1
                works += self._post([message])
                continue
            self._reach()
            if self._stage != "prepared":
                _ME.record(event="sent", bytes=message.tensor.numel() if message.op is dist.isend else 0)
            works += self._post([message])
        return works


class _RecordedParts(Sharded[torch.nn.Module]):
    def save(self, step: int) -> object:
        way = super().save(step)
        _ME.record(event="saved" if way is None else "kept", step=step)
        return way


class Counted(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("rank", torch.zeros(1, dtype=torch.float64))  # of this process in the last step

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.rank.fill_(dist.get_rank())
        return values + self.calls / 1000


class _Locked:
    """Has a state that cannot be copied."""

    def state_dict(self) -> dict[str, Any]:
        return {"lock": threading.Lock()}


class Built(NamedTuple):
    model: Any
    optimizer: Any
    scheduler: Any
    round: int

    @property
    def counted(self) -> Any:
        return getattr(self.model, "module", self.model)[1]


def _limit_files(size: int) -> None:
    """Let files have no more bytes than this, as in a file system that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _slow_down(place: Any, name: str, seconds: float) -> None:
    """Let a function take longer, as on a slow file system, or with much memory."""
    call = getattr(place, name)

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return call(*args, **kwargs)

    setattr(place, name, slow)


def _copies() -> PeerCopies | None:
    if _KIND == "copies":
        return PeerCopies(every=int(_NUMBER))
    if _KIND not in ("kept", "both"):
        return None
    host = _ME.root / f"host-{_ME.host}"
    host.mkdir(exist_ok=True)
    if _ME.is_told("has-no-room"):
        _limit_files(_ROOM)
    return PeerCopies(every=int(_NUMBER), directory=host)


def _build(ranks: RoundRanks) -> tuple[dict[str, Any], Built]:
    torch.manual_seed(0)
    linear = partial(torch.nn.Linear, bias=_KIND != "exact_stops")  # each tensor is a message, and so a point
    layers = linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Dropout(0.2), linear(HIDDEN, 1)
    model = torch.nn.Sequential(*layers[:1], Counted(), *layers[1:]).double()
    is_otherwise = _KIND == "otherwise" and ranks.size == 2
    mesh = ranks.mesh(replicate=1, shard=-1) if is_otherwise else ranks.mesh()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=PERIOD)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    states = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return states if not _ME.is_told("cannot-copy") else {**states, "lock": _Locked()}, Built(
        model, optimizer, scheduler, ranks.round
    )


def _tensor_bytes() -> int:
    """How many bytes the tensors have that Python knows, but for those from before the training."""
    plain = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in plain}.values())


def _local(tensor: Any) -> Any:
    """Return what this rank has of a tensor: its rows, or all of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _positions(tensor: Any, salt: int) -> torch.Tensor:
    """Return a number for each element that this rank has, from its place in the whole tensor."""
    local, first = _local(tensor), 0
    if isinstance(tensor, DTensor):
        first = -(-tensor.shape[0] // dist.get_world_size()) * dist.get_rank()
    columns = torch.arange(local[0].numel() if len(local) else 0)
    return (torch.arange(first, first + len(local))[:, None] * 1_000_003 + columns * 7919 + salt).view_as(local)


def _means(built: Built) -> Any:
    """Return by the parameter what this rank has of the optimizer's state, also if each parameter has one owner."""
    return getattr(built.optimizer, "optim", built.optimizer).state


def _checksums(built: Built) -> dict[str, int]:
    """Return two numbers that change with each bit and each place: of what is divided, and of what each rank has.

    The first one is to be summed over all ranks.
    """
    found = {"checksum": 0, "whole": 0}
    for salt, parameter in enumerate(built.model.parameters()):
        means = _means(built).get(parameter, {})
        for number, tensor in enumerate((parameter, *(means[name] for name in ("exp_avg", "exp_avg_sq") if means))):
            bits = _local(tensor).detach().view(torch.int64)
            is_whole = tensor is parameter and not isinstance(tensor, DTensor)
            odd = 2 * _positions(tensor, 3 * salt + number) + 1
            found["whole" if is_whole else "checksum"] += int((bits * odd).sum())
    return {name: each % 2**64 for name, each in found.items()}


def _rest(built: Built) -> list[int]:
    """Return what has the number of finished steps in each rank."""
    steps = {int(each["step"]) for each in _means(built).values()} or {0}
    return [*steps, built.scheduler.last_epoch, int(built.counted.calls)]


def _make_exact(built: Built, step: int) -> None:
    """Give each element a gradient of its place and step alone, so that no sum depends on the number of ranks."""
    for salt, parameter in enumerate(built.model.parameters()):
        numbers = _positions(parameter, salt + 31 * step) % 257 - 128
        _local(parameter.grad).copy_(numbers.double() / 128)


def _backward(built: Built, batch: Batch) -> None:
    for what, number in (("dies", signal.SIGKILL), ("freezes", signal.SIGSTOP)):
        if _ME.is_told(f"{what}-in-step-{batch.step}", once=True):
            os.kill(os.getpid(), number)
    _ME.take_time()
    world = dist.get_world_size()
    if _IS_EXACT:
        state = {**_checksums(built), "rest": _rest(built)}
        _ME.record(event="state", step=batch.step, world=world, round=built.round, **state)
    features = torch.sin(torch.tensor(batch.indices)[:, None] * torch.arange(1, FEATURES + 1, dtype=torch.float64))
    rest_of = int(built.counted.rank)
    loss = built.model(features).square().mean() * batch.weight
    loss.backward()
    if _IS_EXACT:
        _make_exact(built, batch.step)
    found = {**resources(), "tensors": _tensor_bytes(), "rest_of": rest_of}
    _ME.record(event="end", step=batch.step, world=world, loss=loss.item().hex(), **found)


def main(build: Callable[[RoundRanks], tuple[dict[str, Any], Built]] = _build) -> None:
    _ME.pause_by_files()
    if _STOPS:
        init()
    if _KIND == "stops":
        _slow_down(checkpoint, "save", _STORAGE_SECONDS)
    if _ME.is_told("slow-transfer"):
        _slow_down(handover, "transfer", _KEEPER_SECONDS)
    if _ME.is_told("slow-keeper"):
        for name in ("put", "get"):
            _slow_down(KeeperClient, name, _KEEPER_SECONDS)
    if _KIND == "exact_stops":
        StopPoints(_ME)
    else:
        _Points()
    limit = float(_NUMBER) if _IS_EXACT and _NUMBER else 10.0
    handing = 0.0 if _ME.is_told("hands-nothing") else _HANDING.get(_KIND, limit)
    built = train(
        _RecordedParts(_ME.root / "checkpoints", build, copies=_copies(), in_memory_at_stop=_STOPS),
        _backward,
        samples=_SAMPLES,
        global_batch=_GLOBAL_BATCH,
        steps=_ME.steps,
        every=EVERY,
        backend="gloo",
        limits=Limits(collective=limit, handing=handing, holding=30.0, lost=30.0),
    )
    _limit_files(resource.RLIM_INFINITY)
    _ME.finish(get_model_state_dict(built.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_exit.run(main)
