"""Issues this supervisor's certificate, and renews it long before its end.

The certificate is kept in two files and served like one that an administrator provides. Only one thread of this process
writes and reads them, so it never sees a mixed pair; at the start both are written again.
"""

import os
import tempfile
from asyncio import sleep
from dataclasses import dataclass
from pathlib import Path

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.errors import ApiUnavailableError
from servicekit.reconcile import reconcile
from servicekit.tls import Files, ServerCertificate
from supervisor.pki.authority import DAY, Leaf
from supervisor.pki.errors import KeysError
from supervisor.pki.keys import Keys
from supervisor.pki.keys_secret import KeysSecret

_CHECK_SECONDS = 10.0
"""The interval of checks of the Secret; each is one small request."""

_MIN_CHECKS = 10
"""Checks in the life of a certificate, at least."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateOptions:
    """The names, life and directory of the certificates. Without names no certificate is issued."""

    directory: Path
    names: tuple[str, ...]
    seconds: float


class CertificateRenewer:
    """Follows the keys Secret, and keeps a certificate of its CA.

    Args:
        keys_secret: The Secret, which is checked regularly: the CA may be rotated, or the Secret deleted.
        keys: The content that was read first.
        options: What to issue.
        clock: For the life of certificates.
        bulkhead: Keeps what nobody foresaw, so that the next check is made.

    Attributes:
        keys: The present keys.
        certificate: The certificate to serve; None without names.

    Raises:
        OSError: The files cannot be written.
    """

    def __init__(
        self, keys_secret: KeysSecret, keys: Keys, options: CertificateOptions, clock: Clock, bulkhead: Bulkhead
    ) -> None:
        self._bulkhead = bulkhead
        self.keys = keys
        self._keys_secret = keys_secret
        self._options = options
        self._clock = clock
        self._keys_fault = Fault("keys", clock)
        self._files_fault = Fault("certificate files", clock)
        self._files = Files(options.directory / "tls.crt", options.directory / "tls.key")
        self._warned_at = 0.0
        self.certificate: ServerCertificate | None = None
        if options.names:
            options.directory.mkdir(mode=0o700, exist_ok=True)
            self._leaf = self._issue()
            self.certificate = ServerCertificate(self._files, self._pause, clock)
        self._warn()

    async def run(self) -> None:
        """Root task: checks the Secret and the certificate again and again."""
        await sleep(self._pause)
        await reconcile("keys", self.once, self._bulkhead)

    async def once(self) -> float:
        """Checks the Secret, and renews the certificate if needed, even while the API server is unavailable.

        Returns the seconds until the next check.
        """
        await self._follow()
        self._renew()
        self._warn()
        return self._pause

    async def _follow(self) -> None:
        try:
            found = await self._keys_secret.obtain(self.keys)
        except (KeysError, ApiUnavailableError) as error:
            self._keys_fault.failed(str(error))
            return
        self._keys_fault.recovered()
        if found.tokens != self.keys.tokens:
            _log.warning("keys.token_secret_changed", until="restart", using="the one from before")
        if found.content != self.keys.content:
            _log.info("keys.changed", ends=found.authority.not_after)
        self.keys = found

    def _renew(self) -> None:
        if self.certificate is None:
            return
        try:
            if self.keys.authority.needs_renewal(self._leaf, self._clock.now()):
                self._leaf = self._issue()
                self.certificate.reload()
        except OSError as error:
            self._files_fault.failed(str(error))
            return
        self._files_fault.recovered()

    def _issue(self) -> Leaf:
        options = self._options
        leaf = self.keys.authority.issue(options.names, self._clock.now(), options.seconds)
        _write(self._files.key, leaf.key)
        _write(self._files.certificate, leaf.certificate)
        _log.info(
            "certificate.issued", names=list(options.names), days=round((leaf.not_after - leaf.not_before) / DAY, 1)
        )
        return leaf

    def _warn(self) -> None:
        """Warns once a day that the CA expires soon."""
        authority, now = self.keys.authority, self._clock.now()
        if authority.expires_soon(now) and now - self._warned_at >= DAY:
            self._warned_at = now
            _log.warning(
                "authority.ends", days_left=round((authority.not_after - now) / DAY, 1), see="docs/kubernetes/keys.md"
            )

    @property
    def _pause(self) -> float:
        return min(_CHECK_SECONDS, self._options.seconds / _MIN_CHECKS)


def _write(path: Path, content: bytes) -> None:
    """Writes a file atomically, readable by its owner alone."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".tls-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(draft).replace(path)
    except OSError:  # On a full disk each attempt would leave a file behind.
        Path(draft).unlink(missing_ok=True)
        raise
