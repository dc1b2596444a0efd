"""Asserts that a state which comes from files of copies is trained elsewhere: the files remain as they are."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from kubeai.torch.decisions import NO_STATE, FormedRound
from kubeai.torch.group import form_alone, leave_group
from kubeai.torch.ranks import RoundRanks
from kubeai.torch.settings import Limits, PeerCopies
from kubeai.torch.states import Sharded
from torch.distributed.fsdp import fully_shard


def _build(ranks: RoundRanks) -> tuple[dict[str, Any], torch.nn.Module]:
    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=ranks.mesh())
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1)}, model


def _train(state: Sharded[torch.nn.Module], model: torch.nn.Module) -> None:
    model(torch.ones(4, 8)).sum().backward()
    for optimizer in state.optimizers:
        optimizer.step()


def _rows(host: Path) -> dict[str, bytes]:
    """Return the rows of all parts that are offered, by the name of their file."""
    return {path.name: path.with_suffix(".rows").read_bytes() for path in host.glob("*/*.part")}


def main(root: Path) -> None:
    host = root / "host"
    host.mkdir()
    state = Sharded(root / "checkpoints", _build, copies=PeerCopies(every=1, directory=host))
    form_alone("gloo", 10.0)
    step, model = state.enter(FormedRound(1, (NO_STATE,), (1,)), Limits())
    assert step == 0
    _train(state, model)
    state.begin_step(1)
    state.leave()
    leave_group(None)
    form_alone("gloo", 10.0)
    step, model = state.enter(FormedRound(2, (1,), (1,)), Limits())
    assert step == 1
    before = _rows(host)
    assert len(before) == 1
    _train(state, model)
    assert _rows(host) == before
    state.end(2, is_over=True)
    assert not list(host.iterdir())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
