"""One training process of the sample job. Its launcher starts it.

    python -m kubeai.elastic.sample.training CHECKPOINT

Standard input brings one task a line: a rank, and the state to compute a gradient at. Without a state, the task asks
for the checkpoint. Standard output takes one answer a line. The end of the input ends the process.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubeai.elastic as kubeai

from .model import State, gradient, load, save, state_of

_SAVE_EVERY = 100


@dataclass
class _Process:
    checkpoint: Path
    rank: int | None = None

    def answer(self, task: dict[str, Any]) -> dict[str, Any]:
        self.rank = task["rank"]
        if task["state"] is None:
            return load(self.checkpoint).fields()
        state = state_of(task["state"])
        if not kubeai.check_alive():  # in every rank, before every step
            self._save(state)
            sys.exit(-1)  # never 0: that would mean that the training is finished
        if kubeai.should_checkpoint() or state.step % _SAVE_EVERY == 0:
            self._save(state)
        found = gradient(state, task["rank"])
        return {"gradient": list(found.values), "loss": found.loss}

    def _save(self, state: State) -> None:
        if self.rank == 0:
            save(self.checkpoint, state)
            kubeai.checkpoint_saved(state.step)


def main() -> None:
    """Answer tasks until the input ends."""
    process = _Process(Path(sys.argv[1]))
    kubeai.init(rank=lambda: process.rank)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(process.answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
