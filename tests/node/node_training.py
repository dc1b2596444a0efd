"""The training script of the test pod: it steps until it is told to leave, saves a checkpoint and exits non-zero.

python node_training.py DIRECTORY: writes `step`, and `checkpoint` once it leaves.
"""

import json
import sys
import time
from pathlib import Path

import kubeai.elastic as kubeai

_IDENTITY = Path("/var/run/kubeai")
_DIRECTIVE = "job-supervisor.kube-ai.io/directive="


def main(directory: Path) -> None:
    kubeai.init(rank=lambda: 0)
    step = 0
    while kubeai.check_alive():
        time.sleep(0.02)  # One step.
        step += 1
        (directory / "step").write_text(str(step), encoding="utf-8")
    draft = directory / "draft"
    said = kubeai.directive()
    annotated = _DIRECTIVE in (_IDENTITY / "annotations").read_text(encoding="utf-8")
    told = {"step": step, "kind": said.kind.value, "annotated": annotated, "at": time.time()}
    draft.write_text(json.dumps(told), encoding="utf-8")
    draft.replace(directory / "checkpoint")
    kubeai.checkpoint_saved(step)
    sys.exit(3)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
