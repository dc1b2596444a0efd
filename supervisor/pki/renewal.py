"""The certificate that this supervisor serves: issued by itself, and renewed long before its end.

It lies in two files, as one that somebody else renews would, and is served in the same way. Only this process's one
thread writes and reads them, so no half of a pair is ever seen; after a kill between the two both are written anew.
"""

import os
import tempfile
from asyncio import sleep
from dataclasses import dataclass
from pathlib import Path

import structlog

from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.errors import ApiUnavailableError
from servicekit.tls import Files, ServerCertificate
from supervisor.pki.authority import DAY, Leaf
from supervisor.pki.errors import KeysError
from supervisor.pki.keys import Keys
from supervisor.pki.keys_secret import KeysSecret

_LOOK_SECONDS = 10.0
"""Between two looks at the Secret: one small request each."""

_LOOKS = 10
"""At the least, in the life of a certificate."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateOptions:
    """For which names and how many seconds certificates are issued, and where they lie. Without names there is none."""

    directory: Path
    names: tuple[str, ...]
    seconds: float


class CertificateRenewer:
    """Keeps the keys at hand, and a certificate of their authority.

    Args:
        keychain: Looked at now and then: somebody may exchange the authority, or lose the Secret.
        keys: What it holds.
        terms: What is to be issued.
        clock: For lives.

    Attributes:
        keys: As they are now.
        certificate: What is served; None where no names are given.

    Raises:
        OSError: The files cannot be written.
    """

    def __init__(self, keys_secret: KeysSecret, keys: Keys, terms: CertificateOptions, clock: Clock) -> None:
        self.keys = keys
        self._keys_secret = keys_secret
        self._terms = terms
        self._clock = clock
        self._keys_fault = Fault("keys", clock)
        self._files_fault = Fault("certificate files", clock)
        self._files = Files(terms.directory / "tls.crt", terms.directory / "tls.key")
        self._warned_at = 0.0
        self.certificate: ServerCertificate | None = None
        if terms.names:
            terms.directory.mkdir(mode=0o700, exist_ok=True)
            self._leaf = self._issue()
            self.certificate = ServerCertificate(self._files, self._pause, clock)
        self._warn()

    async def run(self) -> None:
        """Root task."""
        while True:
            await sleep(self._pause)
            await self.once()

    async def once(self) -> None:
        """Follows the Secret, and issues what is due: also while the API server is away."""
        await self._follow()
        self._renew()
        self._warn()

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
        terms = self._terms
        leaf = self.keys.authority.issue(terms.names, self._clock.now(), terms.seconds)
        _write(self._files.key, leaf.key)
        _write(self._files.certificate, leaf.certificate)
        _log.info(
            "certificate.issued", names=list(terms.names), days=round((leaf.not_after - leaf.not_before) / DAY, 1)
        )
        return leaf

    def _warn(self) -> None:
        """Each day anew: what has to be done is not done in one."""
        authority, now = self.keys.authority, self._clock.now()
        if authority.expires_soon(now) and now - self._warned_at >= DAY:
            self._warned_at = now
            _log.warning(
                "authority.ends", days_left=round((authority.not_after - now) / DAY, 1), see="docs/kubernetes/keys.md"
            )

    @property
    def _pause(self) -> float:
        return min(_LOOK_SECONDS, self._terms.seconds / _LOOKS)


def _write(path: Path, content: bytes) -> None:
    """All of it or nothing, for this process's user alone."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".tls-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(draft).replace(path)
    except OSError:  # On a full disk each attempt would leave one more.
        Path(draft).unlink(missing_ok=True)
        raise
