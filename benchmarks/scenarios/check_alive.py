"""The cost of `check_alive()` compared to an empty function and to the original's."""

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from benchmarks.clients import calls
from benchmarks.harness.original_kubeai import DISTRIBUTION, interpreter
from benchmarks.results import Figure, Outcome, Row, Target, Unit

AT_MOST_MORE_NANOSECONDS = 20.0

METHOD = """\
`kubeai.check_alive()`, called through its module as scripts do, and an empty function called the same way, in turns
in one process; the minimum of 40 rounds of 50,000 calls. Ours is initialised and listens for a supervisor. The
original runs in a virtual environment with the same Python. It is not initialised, because that would open a port to
everybody."""


class _Costs(msgspec.Struct, frozen=True):
    empty: float
    check_alive: float


async def run(root: Path, *, short: bool) -> Outcome:  # noqa: ARG001 - a full run takes only a second
    rows = [_row("kubeai.elastic", await _measure(Path(sys.executable), "ours", root), aim=True)]
    original = await interpreter()
    if original is None:
        rows.append(Row(case=f"PyPI's {DISTRIBUTION}: could not be installed", figures=()))
    else:
        rows.append(_row(f"PyPI's {DISTRIBUTION}", await _measure(original, "original", root), aim=False))
    return Outcome(scenario="calls", title="`check_alive()`", method=METHOD, rows=tuple(rows))


async def _measure(python: Path, which: str, directory: Path) -> _Costs:
    process = await asyncio.create_subprocess_exec(
        *(str(python), str(calls.__file__), which),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "KUBEAI_DIR": str(directory)},
    )
    out, _ = await process.communicate()
    return msgspec.json.decode(out, type=_Costs)


def _row(case: str, costs: _Costs, *, aim: bool) -> Row:
    target = Target(at_most=AT_MOST_MORE_NANOSECONDS) if aim else None
    more = costs.check_alive - costs.empty
    return Row(
        case=case,
        figures=(
            Figure(label="empty function", value=costs.empty, unit=Unit.NANOSECONDS),
            Figure(label="check_alive()", value=costs.check_alive, unit=Unit.NANOSECONDS),
            Figure(label="more", value=more, unit=Unit.NANOSECONDS, target=target),
        ),
    )
