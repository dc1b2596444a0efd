"""gRPC's events reach a loop whose turns are long."""

import asyncio
import sys

from tests.servicekit import kit_long_turns


async def _turns(how: str) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", kit_long_turns.__name__, how), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return int(out)


async def test_a_burst_of_calls_takes_few_turns_of_the_loop() -> None:
    kept, plain = await asyncio.gather(_turns("keep-up"), _turns("as-it-is"))
    assert kept * 4 < plain
