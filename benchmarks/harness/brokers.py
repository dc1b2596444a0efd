"""Message brokers that a user could build notices on: Debian's, as real processes on loopback, with TLS."""

import asyncio
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.machine import Usage, usage
from simulator.certificates import SimulatedAuthority
from simulator.cloud.process import CloudChild, TooLate, environment, spawn

_START_SECONDS = 30.0
_LOOK_SECONDS = 0.05

_Arguments = Callable[[int, SimulatedAuthority], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Product:
    """A broker: the program, which Debian's package of the same name has, and how it is started on a port."""

    title: str
    program: str
    arguments: _Arguments


def _redis(port: int, authority: SimulatedAuthority) -> Sequence[str]:
    return (
        *("--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(authority.cert_file), "--tls-key-file", str(authority.key_file)),
        *("--tls-ca-cert-file", str(authority.ca_file), "--save", "", "--maxclients", "20000"),
    )


def _nats(port: int, authority: SimulatedAuthority) -> Sequence[str]:
    files = ("--tlscert", str(authority.cert_file), "--tlskey", str(authority.key_file))
    return ("--addr", "127.0.0.1", "--port", str(port), "--tls", *files)


PRODUCTS: Mapping[str, Product] = MappingProxyType(
    {"redis": Product("Redis", "redis-server", _redis), "nats": Product("NATS", "nats-server", _nats)}
)


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker."""

    name: str
    port: int
    ca: bytes
    child: CloudChild

    def usage(self) -> Usage:
        """What its process has used."""
        return usage(self.child.pid)


def program(name: str) -> str | None:
    """The path of the broker's program; None if this machine has none."""
    return shutil.which(PRODUCTS[name].program)


@asynccontextmanager
async def broker(name: str, root: Path) -> AsyncIterator[Broker]:
    """A broker that accepts connections. Its program has to be there.

    Raises:
        ProcessEnded: It ended at once.
        TooLate: It does not listen.
    """
    authority, port = SimulatedAuthority(root / "certificates"), _free_port()
    command = [program(name) or PRODUCTS[name].program, *PRODUCTS[name].arguments(port, authority)]
    child = spawn(name, command, environment(root, {}), root / f"{name}.log")
    try:
        await _listens(child, port)
        yield Broker(name, port, authority.ca_pem, child)
    finally:
        await child.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


async def _listens(child: CloudChild, port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        child.check()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            writer.close()
            return
    raise TooLate(f"{child.name} does not listen:\n{child.tail()}")
