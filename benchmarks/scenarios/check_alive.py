"""The cost of `check_alive()` and `should_stop(step)` compared to empty functions and to the original's."""

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from benchmarks.clients import calls
from benchmarks.harness.original_kubeai import DISTRIBUTION, interpreter
from benchmarks.results import Figure, ResultTarget, Row, ScenarioOutcome, Unit

AT_MOST_MORE_NANOSECONDS = 20.0
AT_MOST_MORE_FOR_A_STEP_NANOSECONDS = 60.0

METHOD = """\
`kubeai.check_alive()`, called through its module as scripts do, and an empty function called the same way, in turns
in one process; the minimum of 40 rounds of 50,000 calls. `should_stop(step)` and `should_checkpoint(step)` stand beside
an empty function with one argument. Ours is initialised and listens for a supervisor. The original runs in a virtual
environment with the same Python. It is not initialised, because that would open a port to everybody."""


class _Costs(msgspec.Struct, frozen=True):
    """Nanoseconds for each call. The original has no functions with a step."""

    empty: float
    check_alive: float
    empty_with_step: float = 0.0
    should_stop: float = 0.0
    should_checkpoint: float = 0.0


async def run(root: Path, *, short: bool) -> ScenarioOutcome:  # noqa: ARG001 - a full run takes only a second
    ours = await _measure(Path(sys.executable), "ours", root)
    per_step = ResultTarget(at_most=AT_MOST_MORE_FOR_A_STEP_NANOSECONDS)
    rows = [
        _row(
            "kubeai.elastic: check_alive()",
            ours.empty,
            ours.check_alive,
            ResultTarget(at_most=AT_MOST_MORE_NANOSECONDS),
        ),
        _row("kubeai.elastic: should_stop(step)", ours.empty_with_step, ours.should_stop, per_step),
        _row("kubeai.elastic: should_checkpoint(step)", ours.empty_with_step, ours.should_checkpoint, per_step),
    ]
    original = await interpreter()
    if original is None:
        rows.append(Row(case=f"PyPI's {DISTRIBUTION}: could not be installed", figures=()))
    else:
        costs = await _measure(original, "original", root)
        rows.append(_row(f"PyPI's {DISTRIBUTION}: check_alive()", costs.empty, costs.check_alive, None))
    return ScenarioOutcome(
        scenario="calls", title="`check_alive()` and `should_stop(step)`", method=METHOD, rows=tuple(rows)
    )


async def _measure(python: Path, which: str, directory: Path) -> _Costs:
    process = await asyncio.create_subprocess_exec(
        *(str(python), str(calls.__file__), which),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "KUBEAI_DIR": str(directory)},
    )
    out, _ = await process.communicate()
    return msgspec.json.decode(out, type=_Costs)


def _row(case: str, empty: float, call: float, target: ResultTarget | None) -> Row:
    return Row(
        case=case,
        figures=(
            Figure(label="empty function", value=empty, unit=Unit.NANOSECONDS),
            Figure(label="the call", value=call, unit=Unit.NANOSECONDS),
            Figure(label="more", value=call - empty, unit=Unit.NANOSECONDS, target=target),
        ),
    )
