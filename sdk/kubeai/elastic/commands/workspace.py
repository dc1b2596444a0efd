"""The identity directory that kubeai-run maintains for its command and the training processes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Iterable, Sequence

from kubeai.elastic import identity

from .failpoints import RunFailpoint, failpoint
from .reconcile import RecordedStop

if TYPE_CHECKING:
    from pathlib import Path

_STOPPED, _TOKEN, _CA = "stopped", "token", "ca.crt"
_LAST_HOSTS, _HOSTS, _EXCLUSIONS = "hosts.last", "hosts", "exclusions"
_UNREACHABLE, _PRINTED, _LEFT = "hosts.unreachable", "hosts.printed", "hosts.left"


class RunWorkspace:
    """The files of one job.

    Args:
        directory: The directory; created for its owner alone if it does not exist.
        job: The job's name.
        address: The supervisor's address.
        ca: File with the CA certificates to trust, if the address is https.

    Raises:
        OSError: From every method: the directory cannot be used now.
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
        # Files of an earlier job in the same directory are about other runs, whatever their numbers.
        for name in (_STOPPED, _TOKEN, _CA):
            (directory / name).unlink(missing_ok=True)

    def list_hosts(self, hosts: Sequence[str], exclusions: Iterable[str]) -> None:
        """Write the granted and the excluded hosts.

        Unchanged files are not written again, because readers react to every change. No reader may see a host as
        granted and not excluded that never was: hosts that are no longer granted are removed first, new ones are added
        last.
        """
        before = self._written.get(_HOSTS)
        if before is not None:
            self._write(_HOSTS, [host for host in before if host in hosts])
        failpoint(RunFailpoint.HOSTS_NARROWED)
        self._write(_EXCLUSIONS, exclusions)
        failpoint(RunFailpoint.EXCLUSIONS_WRITTEN)
        self._write(_HOSTS, hosts)
        failpoint(RunFailpoint.HOSTS_WRITTEN)

    def _write(self, name: str, listed: Iterable[str]) -> None:
        names = tuple(listed)
        if names != self._written.get(name):
            identity.write_atomically(self.directory / name, "".join(f"{host}\n" for host in names))
            self._written[name] = names

    def enter_run(self, run: int, token: str | None) -> None:
        """Make this the present run.

        Without its token, the token file is absent: a process waits for it instead of speaking for the previous run.
        """
        (self.directory / _TOKEN).unlink(missing_ok=True)
        failpoint(RunFailpoint.TOKEN_REMOVED)
        # A new run probes every host again, because nothing has watched the list since the last command ended. And
        # nobody is in it yet whom a host that joins could disturb.
        for name in (_LAST_HOSTS, _UNREACHABLE, _PRINTED, _LEFT):
            (self.directory / name).unlink(missing_ok=True)
        failpoint(RunFailpoint.LAST_HOSTS_REMOVED)
        identity.write_atomically(self.directory / "run", f"{run}\n")
        failpoint(RunFailpoint.RUN_WRITTEN)
        identity.write_atomically(self.directory / "job", f"{self._job}\n")
        failpoint(RunFailpoint.JOB_WRITTEN)
        identity.write_atomically(self.directory / "address", f"{self._address}\n")
        failpoint(RunFailpoint.ADDRESS_WRITTEN)
        self.renew_trust()
        self._token = ""
        if token:
            self.give_token(token)

    def renew_trust(self) -> None:
        """Write the CA certificates that are valid now. An unreadable source file changes nothing."""
        if self._ca is None:
            return
        with contextlib.suppress(OSError, ValueError):
            trusted = self._ca.read_text(encoding="utf-8")
            if trusted != self._trusted:
                identity.write_atomically(self.directory / _CA, trusted)
                self._trusted = trusted

    def give_token(self, token: str) -> None:
        """Write the present run's token."""
        if token and token != self._token:
            failpoint(RunFailpoint.TOKEN_GIVING)
            identity.write_atomically(self.directory / _TOKEN, f"{token}\n")
            self._token = token
            failpoint(RunFailpoint.TOKEN_GIVEN)

    def read_stop_marker(self) -> RecordedStop | None:
        """Return the STOP that a training process recorded; None if there is none or it is unusable."""
        try:
            run, generation = (self.directory / _STOPPED).read_text(encoding="utf-8").split()
            return RecordedStop(int(run), int(generation))
        except (OSError, ValueError):
            return None
