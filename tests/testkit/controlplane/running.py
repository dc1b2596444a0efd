"""A running control plane: etcd, API server, controller manager, scheduler and kwok on a loopback address."""

import json
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.testkit.controlplane import credentials
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.commands import PORTS, Flags, Layout, arguments
from tests.testkit.controlplane.credentials import Credentials, User
from tests.testkit.controlplane.kwok import DEFINITION, DEFINITIONS, EXECS
from tests.testkit.loopback import drawn_address
from tests.testkit.waiting import PATIENCE

# 3 s on an idle machine.
_POLL_SECONDS = 0.05
_REQUEST_SECONDS = 2.0
_LOG_LINES = 20
# The kernel ends the programs with whoever started them, also when that was killed.
_NONE: Flags = {}
_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


class NotReady(Exception):  # noqa: N818  # It names what is so.
    """A control plane does not answer; the message has its last words."""


@dataclass(frozen=True)
class RunningCluster:
    """The address and credentials of a control plane, for clients in any process."""

    directory: Path

    @property
    def kubeconfig(self) -> Path:
        return self._credentials.kubeconfig(User.ADMIN)

    @property
    def ca(self) -> Path:
        return self._credentials.ca

    @property
    def url(self) -> str:
        return str(self._config["clusters"][0]["cluster"]["server"])

    @property
    def token(self) -> str:
        return str(self._config["users"][0]["user"]["token"])

    def last_words(self) -> str:
        """The end of every log, for a test that has failed."""
        return "\n".join(f"== {log}\n{_tail(log)}" for log in sorted(self.directory.glob("*.log")))

    @property
    def _credentials(self) -> Credentials:
        return Credentials(self.directory / "credentials")

    @cached_property
    def _config(self) -> Any:
        return json.loads(self.kubeconfig.read_bytes())


class ControlPlane:
    """The programs, owned by the thread that starts them.

    They end with that thread, whatever ends it; so start them where the whole test runs, not in a worker thread. They
    listen on the first of the addresses, by default one of the loopback's, and have certificates for all.
    """

    def __init__(
        self,
        programs: Mapping[BinaryProgram, Path],
        directory: Path,
        more: Flags = _NONE,
        addresses: Sequence[str] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._programs = programs
        self._more = more
        addresses = addresses or [_free_address()]
        self._layout = Layout(directory, addresses[0])
        self._processes: dict[BinaryProgram, subprocess.Popen[bytes]] = {}
        credentials.make(self._layout.credentials, self._layout.url, *addresses)
        self.cluster = RunningCluster(directory)

    @property
    def etcd_url(self) -> str:
        return self._layout.etcd_url

    def pid(self, program: BinaryProgram) -> int:
        return self._processes[program].pid

    def runs(self, program: BinaryProgram) -> bool:
        return program in self._processes

    def launch(self, program: BinaryProgram) -> None:
        """Start a program, also again after `kill`, on the same port with the same data; does not wait for it."""
        with self._layout.log(program).open("ab") as log:
            self._processes[program] = subprocess.Popen(
                [
                    *_WITH_PARENT,
                    str(self._programs[program]),
                    *arguments(program, self._layout, self._more.get(program, {})),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._layout.directory,
                # Somebody's Ctrl-C is for the test run, which ends them afterwards.
                start_new_session=True,
            )

    def kill(self, program: BinaryProgram) -> None:
        process = self._processes.pop(program)
        process.kill()
        process.wait()

    def wait_ready(self, program: BinaryProgram, seconds: float = PATIENCE) -> None:
        """Return when a program says that it is ready.

        Raises:
            NotReady: It has ended, or said nothing for that long.
        """
        self._wait(self._layout.health(program), program, seconds)

    def compact(self) -> int:
        """Make etcd forget every revision but the present one, which is returned.

        The API server goes on answering from its own cache what that still has.
        """
        revision = int(self._etcd("range", {"key": "AA==", "count_only": True})["header"]["revision"])
        self._etcd("compaction", {"revision": revision, "physical": True})
        return revision

    def start(self) -> None:
        """Start everything, and return when a pod can be made in the namespace "default".

        Raises:
            NotReady: One does not start.
        """
        for program in (BinaryProgram.ETCD, BinaryProgram.API_SERVER):
            self.launch(program)
        self.wait_ready(BinaryProgram.API_SERVER)
        self._define_execs()
        others = (BinaryProgram.CONTROLLER_MANAGER, BinaryProgram.SCHEDULER, BinaryProgram.KWOK)
        for program in others:
            self.launch(program)
        for program in others:
            self.wait_ready(program)
        account = f"{self._layout.url}/api/v1/namespaces/default/serviceaccounts/default"
        self._wait(account, BinaryProgram.CONTROLLER_MANAGER, PATIENCE)

    def _define_execs(self) -> None:
        # Before kwok starts: it looks for them once, and then again after ever longer pauses.
        self._request(f"{self._layout.url}{DEFINITIONS}", json.dumps(DEFINITION).encode())
        self._wait(f"{self._layout.url}{EXECS}", BinaryProgram.API_SERVER, PATIENCE)

    def stop(self) -> None:
        """End everything at once, as nothing of it is kept but the logs."""
        for program in reversed(BinaryProgram):
            if program in self._processes:
                self.kill(program)
        shutil.rmtree(self._layout.data, ignore_errors=True)

    def _wait(self, url: str, program: BinaryProgram, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._answers(url):
            ended = self._processes[program].poll() is not None
            if ended or time.monotonic() > deadline:
                how = "has ended" if ended else f"was not ready after {seconds:g} s"
                raise NotReady(f"{program} {how}: {_tail(self._layout.log(program))}")
            time.sleep(_POLL_SECONDS)

    def _answers(self, url: str) -> bool:
        try:
            self._request(url)
        except OSError:
            return False
        return True

    def _etcd(self, call: str, body: dict[str, Any]) -> Any:
        return json.loads(self._request(f"{self._layout.etcd_url}/v3/kv/{call}", json.dumps(body).encode()))

    def _request(self, url: str, body: bytes | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {self.cluster.token}"} if url.startswith(self._layout.url) else {}
        headers["Content-Type"] = "application/json"
        request = urllib.request.Request(url, body, headers)  # noqa: S310  # The scheme is ours.
        with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS, context=self._trusted) as answer:  # noqa: S310  # As above.
            content: bytes = answer.read()
        return content

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self._layout.credentials.ca))


@contextmanager
def running(
    programs: Mapping[BinaryProgram, Path], directory: Path, more: Flags = _NONE, addresses: Sequence[str] = ()
) -> Iterator[ControlPlane]:
    """Runs a control plane with its files in a directory, and with further flags of its programs.

    Raises:
        NotReady: It does not start.
    """
    plane = ControlPlane(programs, directory, more, addresses)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


def _free_address() -> str:
    """A loopback address whose ports are all free: two control planes side by side share none."""
    while True:
        if _free(address := drawn_address()):
            return address


def _free(address: str) -> bool:
    with ExitStack() as bound:
        for port in PORTS:
            listener = bound.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
            except OSError:
                return False
    return True


def _tail(log: Path) -> str:
    if not log.exists():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])
