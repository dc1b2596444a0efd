"""The identity directory as kubeai-run keeps it: each file says what it says to the command and its processes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Iterable, Sequence

from kubeai.elastic import identity

from .failpoints import At, failpoint
from .runner_state import Stop

if TYPE_CHECKING:
    from pathlib import Path

_STOPPED, _TOKEN, _CA = "stopped", "token", "ca.crt"
_LAST_HOSTS, _HOSTS, _EXCLUSIONS = "hosts.last", "hosts", "exclusions"


class Workspace:
    """The files of one job.

    Args:
        directory: made for its owner alone where it does not exist.
        job: the job's name.
        address: the supervisor's address.
        ca: file of the certificates to trust, where the address is https.

    Raises:
        OSError: from every method: the directory cannot be used now.
    """

    def __init__(self, directory: Path, job: str, address: str, ca: Path | None) -> None:
        self.directory = directory
        self._job = job
        self._address = address
        self._ca = ca
        self._written: dict[str, tuple[str, ...]] = {}
        self._trusted = ""
        self._token = ""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What an earlier job left in the same directory is about other runs, whatever their numbers.
        self._remove(_STOPPED)
        self._remove(_TOKEN)
        self._remove(_CA)

    def list_hosts(self, hosts: Sequence[str], exclusions: Iterable[str]) -> None:
        """Put the granted hosts and the excluded ones in place.

        Unchanged ones are not written again, as every change is seen by somebody. In between, nobody may see a host as
        granted and not excluded that never was: first go the hosts that are granted no longer, last come the new ones.
        """
        before = self._written.get(_HOSTS)
        if before is not None:
            self._write(_HOSTS, [host for host in before if host in hosts])
        failpoint(At.HOSTS_NARROWED)
        self._write(_EXCLUSIONS, exclusions)
        failpoint(At.EXCLUSIONS_WRITTEN)
        self._write(_HOSTS, hosts)
        failpoint(At.HOSTS_WRITTEN)

    def _write(self, name: str, listed: Iterable[str]) -> None:
        names = tuple(listed)
        if names != self._written.get(name):
            identity.write_atomically(self.directory / name, "".join(f"{host}\n" for host in names))
            self._written[name] = names

    def enter_run(self, run: int, token: str | None) -> None:
        """Say that this is the present run.

        Without its token there is none: a process waits for it, rather than speak for the run before.
        """
        self._remove(_TOKEN)
        failpoint(At.TOKEN_REMOVED)
        # A new run asks every host anew: nobody has watched the list since the command of the last one ended.
        self._remove(_LAST_HOSTS)
        failpoint(At.LAST_HOSTS_REMOVED)
        identity.write_atomically(self.directory / "run", f"{run}\n")
        failpoint(At.RUN_WRITTEN)
        identity.write_atomically(self.directory / "job", f"{self._job}\n")
        failpoint(At.JOB_WRITTEN)
        identity.write_atomically(self.directory / "address", f"{self._address}\n")
        failpoint(At.ADDRESS_WRITTEN)
        self.renew_trust()
        self._token = ""
        if token:
            self.give_token(token)

    def renew_trust(self) -> None:
        """Put in place the certificates that are to be trusted now; a file that cannot be read changes nothing."""
        if self._ca is None:
            return
        with contextlib.suppress(OSError, ValueError):
            trusted = self._ca.read_text(encoding="utf-8")
            if trusted != self._trusted:
                identity.write_atomically(self.directory / _CA, trusted)
                self._trusted = trusted

    def give_token(self, token: str) -> None:
        """Put the present run's token in place."""
        if token and token != self._token:
            failpoint(At.TOKEN_GIVING)
            identity.write_atomically(self.directory / _TOKEN, f"{token}\n")
            self._token = token
            failpoint(At.TOKEN_GIVEN)

    def read_stop_marker(self) -> Stop | None:
        """Read what a training process left about a STOP; None when there is nothing, or nothing usable."""
        try:
            run, generation = (self.directory / _STOPPED).read_text(encoding="utf-8").split()
            return Stop(int(run), int(generation))
        except (OSError, ValueError):
            return None

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.directory / name).unlink()
