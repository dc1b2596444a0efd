"""A PyTorch loop of Horovod elastic: its processes go on when a worker leaves or joins.

horovodrun ... python3 train.py CHECKPOINT [STEPS]
"""

import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

import kubeai.elastic as kubeai

_STEP_SECONDS = 0.05
_BATCH = 24  # It divides by 1, 2 and 3, so that the average over the ranks is that of the batch.


def load(path: Path, model: Any, optimizer: Any) -> int:
    """Return the number of finished steps in the checkpoint, 0 without one."""
    if not path.exists():
        return 0
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def save(path: Path, state: Any) -> None:
    """Write to a draft and rename it, so that a kill leaves the old checkpoint."""
    draft = path.with_suffix(".draft")
    saved = {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict(), "step": state.step}
    torch.save(saved, draft)
    draft.replace(path)
    kubeai.checkpoint_saved(state.step)
    print(f"saved after step {state.step}", flush=True)


@hvd.elastic.run
def train(state: Any, path: Path, steps: int) -> None:
    """Go on from the last commit. Horovod calls it again, in the same process, after each change of the workers."""
    while state.step < steps:
        if not kubeai.check_alive():  # Fewer than the minimum would remain: rank 0 saves, and the job is suspended.
            if hvd.rank() == 0:
                save(path, state)
            sys.exit(-1)  # Never 0, which tells Horovod that the training is complete.
        batch = torch.randn(_BATCH, 16, generator=torch.Generator().manual_seed(state.step))
        state.optimizer.zero_grad()
        loss = state.model(batch[hvd.rank() :: hvd.size()]).square().mean()
        loss.backward()
        state.optimizer.step()
        time.sleep(_STEP_SECONDS)  # Such a step takes no time: this one leaves people some to look.
        state.step += 1
        if hvd.rank() == 0 and state.step % 20 == 0:
            print(f"{hvd.size()} ranks, step {state.step}, loss {loss.item():.4f}", flush=True)
        state.commit()  # It also looks for a changed list of hosts.
    if hvd.rank() == 0:
        save(path, state)


def main(path: Path, steps: int) -> None:
    """Train."""
    hvd.init()
    kubeai.init()  # Once, after Horovod's own: it reads the rank again after each change of the workers.
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.AdamW(model.parameters()), model.named_parameters())
    first = load(path, model, optimizer)
    if hvd.rank() == 0:
        print(f"starts at step {first}", flush=True)
    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=first), path, steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
