"""Garbage on both ports, by the hundred or by the thousand, while somebody honest is warned in time."""

import asyncio
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from simulator.certificates import SimulatedAuthority
from tests.hostile.hostile_world import Bystander, refused
from tests.testkit.serving import AgentPeer, Served, serving
from tests.testkit.waiting import until

CONNECTIONS = int(os.environ.get("HOSTILE_CONNECTIONS", "352"))
"""Twice each kind without TLS, once with."""
CONNECTION_SECONDS = 3.0
WITHIN = 5.0
"""Seconds from a notice to the flag of a real training process in the middle of it all; idle it takes some 30 ms."""
BETWEEN = 0.02
MAX_GROWTH_KIB = 96 * 1024
"""Five hundred connections at once, some 80 KiB each with TLS, twice over."""
MAX_COMPLAINTS = 100
COMPLAINT = re.compile(r"^\d{4}-\S+ \S+ \[(?:warning|error)", re.MULTILINE)
"""gRPC's own, one for each handshake that fails, are switched off where a process is a supervisor's alone."""
ROOT = Path(__file__).parents[2]
TRAINING = """
import time
import kubeai.elastic as kubeai
kubeai.init()
print("training", flush=True)
while kubeai.check_alive():
    time.sleep(0.002)
print(time.monotonic(), flush=True)
"""


@asynccontextmanager
async def in_service(directory: Path, *, tls: bool) -> AsyncIterator[tuple[Served, bytes | None]]:
    authority = SimulatedAuthority(directory / "certificates") if tls else None
    files = {} if authority is None else {"tls_cert_file": authority.cert_file, "tls_key_file": authority.key_file}
    ca = None if authority is None else authority.ca_pem
    # Of agents and processes nothing is to be heard for two seconds before anybody is given up for silence.
    settings: dict[str, Any] = {"connection_seconds": CONNECTION_SECONDS, "heartbeat_seconds": 1.0, **files}
    async with serving(directory, ca, **settings) as served:
        yield served, ca


@contextmanager
def training(directory: Path, served: Served, token: str, ca: bytes | None) -> Iterator["subprocess.Popen[str]"]:
    """A real training process of rank 0 whose last line is the moment at which it was told to stop."""
    directory.mkdir()
    for name, text in {"address": served.peers.http, "token": token, "job": "job", "run": "1"}.items():
        (directory / name).write_text(text)
    if ca is not None:
        (directory / "ca.crt").write_bytes(ca)
    environment = {**os.environ, "KUBEAI_DIR": str(directory), "RANK": "0", "KUBEAI_HOST": "job-1"}
    command = [sys.executable, "-c", TRAINING]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def storm(served: Served, *, tls: bool) -> Iterator["subprocess.Popen[str]"]:
    arguments = [served.peers.http.rpartition("/")[2], served.peers.grpc, str(CONNECTIONS), str(CONNECTION_SECONDS)]
    command = [sys.executable, "-m", "tests.hostile.hostile_storm", *arguments, *(["tls"] if tls else [])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def slowest_acknowledgement(agent: AgentPeer, strangers: "subprocess.Popen[str]") -> float:
    """Seconds until a notice of job-1 was durable, at the worst moment of all that is left of the storm."""
    slowest = 0.0
    for revision in itertools.count(1):
        begun = time.monotonic()
        await agent.notices("job-1", revision=revision)
        slowest = max(slowest, time.monotonic() - begun)
        if strangers.poll() is not None:
            break
        await asyncio.sleep(BETWEEN)
    return slowest


async def line(process: "subprocess.Popen[str]", within: float = 30.0) -> str:
    if process.stdout is None:
        raise AssertionError("it has no output")
    async with asyncio.timeout(within):
        return (await asyncio.to_thread(process.stdout.readline)).strip()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def tasks() -> Counter[str]:
    return Counter(task.get_coro().__qualname__ for task in asyncio.all_tasks())  # type: ignore[union-attr]  # All have.


def resident_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_storm_is_nobody_elses_business(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], *, tls: bool
) -> None:
    """A job is stopped in time in the middle of it, another goes on, it is not narrated, and nothing is kept."""
    async with in_service(tmp_path, tls=tls) as (served, ca):
        other = await Bystander.of(served, "other")
        agents = await served.peers.agents(["job-1", "job-2"])
        _, order = await served.peers.running("job", ["job-1", "job-2"])
        with training(tmp_path / "kubeai", served, order["token"], ca) as process:
            assert await line(process) == "training"
            before, doing, memory = descriptors(), tasks(), resident_kib()
            capfd.readouterr()
            with storm(served, tls=tls) as strangers:
                assert await line(strangers) == "raging"
                begun = time.monotonic()
                await agents["job-2"].notices("job-2")
                assert float(await line(process)) - begun < WITHIN
                assert strangers.poll() is None, "the storm was over before"
                assert await slowest_acknowledgement(agents["job-1"], strangers) < WITHIN
                met = json.loads(await line(strangers, within=60.0))
        assert met["never_ended"] == []
        assert sum(met["made"].values()) == CONNECTIONS
        await until(lambda: descriptors() <= before)
        await until(lambda: not tasks() - doing)
        assert resident_kib() - memory < MAX_GROWTH_KIB
        complaints = COMPLAINT.findall("".join(capfd.readouterr()))
        assert len(complaints) < MAX_COMPLAINTS
        await other.noticed_nothing()
        found = await refused(served)
        assert {("http", "bad_request"), ("http", "bad_token"), ("http", "too_slow")} <= found.keys()
        assert ("grpc", "bad_token") in found
        assert not {("http", "internal"), ("grpc", "internal")} & found.keys()
