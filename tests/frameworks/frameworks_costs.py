"""Measures what a stop and a start of each framework's example take, and simulates what goodput remains at these costs.

Both are written where the guide's table has them from.

python -m tests.frameworks.frameworks_costs
"""

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.goodput.traces import cases
from benchmarks.scenarios.goodput import SEED
from supervisor.goodput.model import GoodputCosts, possible_steps
from supervisor.goodput.policies import with_restarts
from supervisor.goodput.supervised import supervised
from tests.frameworks.frameworks_installation import installed
from tests.frameworks.frameworks_losses import seconds_of, steps_of
from tests.frameworks.frameworks_scenes import stop_at
from tests.frameworks.frameworks_support import COSTS
from tests.frameworks.frameworks_world import RUN_SECONDS, FrameworksScript, example, faked, run_alone


@dataclass(frozen=True, slots=True)
class MeasuredExample:
    """An example, how many steps or epochs it has, a step at which it is stopped, and its further arguments."""

    name: str
    steps: int
    stop: int
    how: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return " ".join((self.name, *self.how))


EXAMPLES = (
    MeasuredExample("huggingface.py", 60, 20),
    MeasuredExample("huggingface.py", 60, 20, ("deepspeed",)),
    MeasuredExample("accelerate_loop.py", 80, 20),
    MeasuredExample("lightning_ddp.py", 4, 20),
    MeasuredExample("ddp.py", 60, 20),
    MeasuredExample("fsdp.py", 60, 20),
    MeasuredExample("deepspeed_zero.py", 60, 20),
    MeasuredExample("keras_fit.py", 4, 20),
)


async def cost(home: Path, root: Path, measured: MeasuredExample) -> dict[str, float]:
    """Stop a run and start the next one; returns how long each took, and how many batches were trained on twice."""
    script = FrameworksScript(
        home,
        example(measured.name),
        (str(root / "checkpoints"), str(measured.steps), *measured.how),
        step_seconds=0.05,
    )
    alone = replace(script, arguments=(str(root / "alone"), *script.arguments[1:]))
    whole = await run_alone(root / "undisturbed", alone)
    await stop_at(root, script, measured.stop)
    stopped = time.time()
    with faked(root, script, run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        runs = second.curves()
    last = max(seconds_of(root / "losses", 1, rank)[-1] for rank in runs[0])
    first = min(seconds_of(root / "losses", 2, rank)[0] for rank in runs[1])
    again = sum(steps_of(run) for run in runs) - steps_of(whole)
    stop, start = stopped - last, first - stopped
    return {"stop": round(stop, 2), "start": round(start, 2), "again": again, "goodput": round(goodput(stop, start), 4)}


def goodput(stop: float, start: float) -> float:
    """Return the share of the recorded capacity that trains, by restarts with the shortest lead."""
    case = next(cases(SEED, short=True))
    costs = with_restarts(GoodputCosts(checkpoint=stop, restart=start))
    return supervised(case, costs, SEED).useful / possible_steps(case, costs)


def _main() -> None:
    costs = {}
    home = installed()
    for measured in EXAMPLES:
        with tempfile.TemporaryDirectory(prefix="frameworks-") as root:
            costs[measured.title] = asyncio.run(cost(home, Path(root), measured))
        sys.stdout.write(f"{measured.title}: {costs[measured.title]}\n")
    COSTS.write_text(json.dumps(costs, indent=2) + "\n", encoding="ascii")


if __name__ == "__main__":
    _main()
