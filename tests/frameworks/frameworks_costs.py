"""Measures what a stop and a start of each framework's example take, and simulates what goodput remains at these costs.

Both are written where the guide's table has them from.

python -m tests.frameworks.frameworks_costs [EXAMPLE …]

With names of examples, only these are measured, and only their rows are left: the rows of one run can be compared.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.goodput.traces import cases
from benchmarks.scenarios.goodput import SEED
from supervisor.goodput.model import GoodputCosts, possible_steps
from supervisor.goodput.policies import with_restarts
from supervisor.goodput.supervised import supervised
from tests.frameworks.frameworks_installation import (
    FRAMEWORKS,
    JAX,
    MEGATRON,
    RAY,
    TENSORFLOW,
    TORCHTITAN,
    TRL,
    FrameworksEnvironment,
    installed,
)
from tests.frameworks.frameworks_losses import seconds_of, steps_of
from tests.frameworks.frameworks_one_by_one import jax_orbax, tensorflow_workers
from tests.frameworks.frameworks_ray import ray_script
from tests.frameworks.frameworks_scenes import stop_at
from tests.frameworks.frameworks_scripts import megatron_gpt, torchtitan_llama, trl_sft
from tests.frameworks.frameworks_support import COSTS
from tests.frameworks.frameworks_world import RUN_SECONDS, FrameworksScript, example, faked, run_alone

_ALONE_SECONDS = 480.0
"""A run takes 10 to 40 s on an idle machine, nearly all of it for imports."""

Make = Callable[[Path, Path, int], AbstractContextManager[FrameworksScript]]
"""Makes a script from its environment, the directory that has its checkpoints, and its number of steps or epochs."""


@dataclass(frozen=True, slots=True)
class MeasuredExample:
    """An example that is measured.

    Attributes:
        title: The name of the example, and its further arguments.
        steps: How many steps or epochs it has.
        make: Makes its script.
        environment: Has the framework.
        stop: A step at which it is stopped.
    """

    title: str
    steps: int
    make: Make
    environment: FrameworksEnvironment = FRAMEWORKS
    stop: int = 20


def _example(name: str, *how: str) -> Make:
    """Under torchrun."""
    return lambda home, root, steps: nullcontext(
        FrameworksScript(home, example(name), (str(root / "checkpoints"), str(steps), *how))
    )


def _made(make: Callable[[Path, Path, int], FrameworksScript]) -> Make:
    return lambda home, root, steps: nullcontext(make(home, root, steps))


EXAMPLES = (
    MeasuredExample("huggingface.py", 60, _example("huggingface.py")),
    MeasuredExample("huggingface.py deepspeed", 60, _example("huggingface.py", "deepspeed")),
    MeasuredExample("trl_sft.py", 60, _made(trl_sft), TRL),
    MeasuredExample("accelerate_loop.py", 80, _example("accelerate_loop.py")),
    MeasuredExample("lightning_ddp.py", 4, _example("lightning_ddp.py")),
    MeasuredExample("ddp.py", 60, _example("ddp.py")),
    MeasuredExample("fsdp.py", 60, _example("fsdp.py")),
    MeasuredExample("deepspeed_zero.py", 60, _example("deepspeed_zero.py")),
    MeasuredExample("megatron_gpt.py", 60, _made(megatron_gpt), MEGATRON),
    MeasuredExample("torchtitan_llama.py", 60, _made(torchtitan_llama), TORCHTITAN, stop=30),
    MeasuredExample("keras_fit.py", 4, _example("keras_fit.py")),
    MeasuredExample("jax_orbax.py", 60, _made(jax_orbax), JAX),
    MeasuredExample("tensorflow_workers.py", 60, _made(tensorflow_workers), TENSORFLOW),
    MeasuredExample("ray_train.py", 60, lambda home, root, steps: ray_script(home, root / "checkpoints", steps), RAY),
)


async def cost(home: Path, root: Path, measured: MeasuredExample) -> dict[str, float]:
    """Stop a run and start the next one; returns how long each took, and how many batches were trained on twice."""
    with measured.make(home, root / "undisturbed", measured.steps) as script:
        whole = await run_alone(root / "undisturbed", script, _ALONE_SECONDS)
    with measured.make(home, root, measured.steps) as script:
        await stop_at(root, replace(script, step_seconds=0.05), measured.stop)
        stopped = time.time()
    with measured.make(home, root, measured.steps) as script:
        started = time.time()
        with faked(root, script, run=2) as second:
            assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
            runs = second.curves()
    last = max(seconds_of(root / "losses", 1, rank)[-1] for rank in runs[0])
    first = min(seconds_of(root / "losses", 2, rank)[0] for rank in runs[1])
    again = sum(steps_of(run) for run in runs) - steps_of(whole)
    stop, start = stopped - last, first - started
    return {"stop": round(stop, 2), "start": round(start, 2), "again": again, "goodput": round(goodput(stop, start), 4)}


def goodput(stop: float, start: float) -> float:
    """Return the share of the recorded capacity that trains, by restarts with the shortest lead."""
    case = next(cases(SEED, short=True))
    costs = with_restarts(GoodputCosts(checkpoint=stop, restart=start))
    return supervised(case, costs, SEED).useful / possible_steps(case, costs)


def _main(*wanted: str) -> None:
    costs = {}
    for measured in (each for each in EXAMPLES if each.title in wanted or not wanted):
        home = installed(measured.environment)
        with tempfile.TemporaryDirectory(prefix="frameworks-") as root:
            costs[measured.title] = asyncio.run(cost(home, Path(root), measured))
        load, _, _ = os.getloadavg()
        sys.stdout.write(f"{measured.title}: {costs[measured.title]}, load {load:.1f}\n")
        sys.stdout.flush()
    COSTS.write_text(json.dumps(costs, indent=2) + "\n", encoding="ascii")


if __name__ == "__main__":
    _main(*sys.argv[1:])
