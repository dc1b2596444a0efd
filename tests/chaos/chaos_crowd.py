"""Runs peers of a supervisor in a process that a test kills: `python -m tests.chaos.chaos_crowd …`.

First they come and go without a word, some of them twice; then many are there at once, and wait for their end.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from supervisor.identity.tokens import Tokens
from supervisor.serving.servers import ENDPOINTS_FILE
from tests.testkit.serving import ServedPeers
from tests.testkit.waiting import until

ROUNDS = 10
STREAMS = ROUNDS * 6 + 20
"""How many streams end with one crowd: of each round three agents, one launcher and two of a process; then the many."""
_HERE = "all here"


async def come_and_die(directory: Path, number: int) -> None:
    """One crowd, from its start to its kill -9."""
    log = directory.with_name("crowd")
    process = _spawn(log, str(directory), str(number))
    try:
        await until(lambda: _HERE in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
    finally:
        process.kill()
        process.wait()


def _spawn(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        command = [sys.executable, "-m", "tests.chaos.chaos_crowd", *arguments]
        return subprocess.Popen(command, stdout=output, stderr=output)


async def _round(known: ServedPeers, number: int) -> None:
    """A job runs and ends, and everybody goes without a word."""
    async with ServedPeers.of(known.tokens, {"http": known.http, "grpc": known.grpc}) as peers:
        agents = [await peers.agent(node, session=number) for node in ("n1", "n2", "n1")]
        instance = f"instance-{number}"
        launcher, order = await peers.running(f"job{number % 5}", ["n1", "n2"], instance=instance, min_workers=1)
        process = await peers.process(order["token"], "n1", 0)
        await process.connect()
        await agents[1].notices("n2", revision=number + 1)
        await agents[1].notices("n2", revision=number + 2, withdrawn=True)
        await launcher.reports(running=False, exit_code=0, result="succeeded")


async def _many(known: ServedPeers, number: int) -> None:
    """Ten agents, five launchers whose jobs run, and a process of each."""
    for place in range(10):
        await known.agent(f"m{place}", session=number)
    for place in range(5):
        hosts = [f"m{2 * place}", f"m{2 * place + 1}"]
        _, order = await known.running(f"killed{place}", hosts, instance=f"instance-{number}")
        await known.process(order["token"], hosts[0], 0)


async def _crowd(directory: Path, number: int) -> None:
    endpoints = json.loads((directory / ENDPOINTS_FILE).read_bytes())
    async with ServedPeers.of(Tokens.load(directory), endpoints) as known:
        for each in range(ROUNDS):
            await _round(known, 1000 * number + 10 * each)
        await _many(known, number)
        print(_HERE, flush=True)  # noqa: T201 - this is how it says so
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_crowd(Path(sys.argv[1]), int(sys.argv[2])))
