"""Follows the keys Secret, and keeps a certificate of its CA, which it renews long before its end.

The first supervisor creates the Secret, and no supervisor changes it. The certificate is kept in two files and served
like one that an administrator provides. Only one thread of this process writes and reads them, so it never sees a mixed
pair; at the start both are written again.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Backoff, Fault
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, ConflictError, NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from servicekit.reconcile import reconcile
from servicekit.tls import Files, ServerCertificate
from supervisor.pki.keys import DAY, Keys, KeysError, Leaf

_CHECK_SECONDS = 10.0
"""The interval of checks of the Secret; each is one small request."""

_SECRETS = Resource(group="", version="v1", kind="Secret", plural="secrets", namespaced=True)
_FIRST_PAUSE, _MAX_PAUSE = 0.1, 1.0

_MIN_CHECKS = 10
"""Checks in the life of a certificate, at least."""

_log = structlog.get_logger()


class _Secret(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: Mapping[str, bytes] | None = None


class KeysSecret:
    """Reads the Secret with the keys, and creates it if there is none."""

    def __init__(self, server: ApiServer, secret: ObjectKey, clock: Clock) -> None:
        self._secrets = ResourceClient(server, _SECRETS, partial(msgspec.json.decode, type=_Secret))
        self._key = secret
        self._clock = clock
        self._fault = Fault("API server", clock)

    async def first(self) -> Keys:
        """Does the same as `obtain`, but waits for an unavailable API server.

        Raises:
            KeysError: See `obtain`.
        """
        backoff = Backoff(_FIRST_PAUSE, _MAX_PAUSE)
        while True:
            try:
                keys = await self.obtain()
            except ApiUnavailableError as error:
                self._fault.failed(str(error))
                await asyncio.sleep(backoff.next())
            else:
                self._fault.recovered()
                return keys

    async def obtain(self, known: Keys | None = None) -> Keys:
        """Reads the keys. If there is no Secret, creates it with the `known` keys, or else with new ones.

        Raises:
            KeysError: The content is invalid (and is not changed), or the Secret may not be read or created.
            ApiUnavailableError: The API server does not answer.
        """
        where = f"Secret {self._key.name} in namespace {self._key.namespace}"
        try:
            while True:
                with suppress(NotFoundError):
                    secret = await self._secrets.get(self._key)
                    return Keys.read(secret.data or {}, self._clock.now())
                with suppress(ConflictError):  # Another supervisor was first; read its keys.
                    keys = known or Keys.make(self._clock.now())
                    await self._secrets.create(self._key, {"type": "Opaque", "data": keys.content})
                    _log.info("keys.made", secret=self._key.name, namespace=self._key.namespace)
                    return keys
        except KeysError as error:
            raise KeysError(f"{where}: {error}. The supervisor does not change it: correct or restore it") from error
        except ApiUnavailableError:
            raise
        except ApiError as error:
            raise KeysError(f"{where}: {error}") from error


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
        bulkhead: Confines an unforeseen error, so that the next check is made.

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
        self._pause = min(_CHECK_SECONDS, options.seconds / _MIN_CHECKS)
        self._warned_at = 0.0
        self.certificate: ServerCertificate | None = None
        if options.names:
            options.directory.mkdir(mode=0o700, exist_ok=True)
            self._leaf = self._issue()
            self.certificate = ServerCertificate(self._files, self._pause, clock)
        self._warn()

    async def run(self) -> None:
        """Root task: checks the Secret and the certificate again and again."""
        await asyncio.sleep(self._pause)
        await reconcile("keys", self.once, self._bulkhead)

    async def once(self) -> float:
        """Checks the Secret, and renews the certificate if needed, even while the API server is unavailable.

        Returns the seconds until the next check.
        """
        try:
            found = await self._keys_secret.obtain(self.keys)
        except (KeysError, ApiUnavailableError) as error:
            self._keys_fault.failed(str(error))
        else:
            self._keys_fault.recovered()
            if found.tokens != self.keys.tokens:
                _log.warning("keys.token_secret_changed", until="restart", using="the one from before")
            if found.content != self.keys.content:
                _log.info("keys.changed", ends=found.authority.not_after)
            self.keys = found
        if self.certificate is not None:
            try:
                if self.keys.authority.needs_renewal(self._leaf, self._clock.now()):
                    self._leaf = self._issue()
                    self.certificate.reload()
            except OSError as error:
                self._files_fault.failed(str(error))
            else:
                self._files_fault.recovered()
        self._warn()
        return self._pause

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
