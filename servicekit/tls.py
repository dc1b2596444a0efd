"""Serves a certificate that is rotated while it is in use.

The content of the two files is compared every few seconds, because those that rotate them (a Kubernetes secret, a
renewal job) swap links or rename files without a signal. A new pair is first tested by a handshake in memory. A pair
that is half-written or otherwise unusable is refused, and the old one stays in use. Open connections keep theirs.
"""

import asyncio
import contextlib
import os
import ssl
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NoReturn

import structlog

from servicekit.clock import Clock
from servicekit.faults import Fault

_DAY = 86400.0
_LONGEST_WARNING_SECONDS = 14 * _DAY
_WARNING_SHARE = 0.1  # A certificate is usually renewed long before the last tenth of its life.
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME; the ssl module has no name for it.

_log = structlog.get_logger()


class CertificateUnusable(Exception):  # noqa: N818 - it names what is so
    """The files have no usable certificate and key, so a person has to correct them. The text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a certificate, in PEM: the leaf followed by its chain, and the leaf's key without encryption."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate chain and its key, read together."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The validity period of a certificate, in Unix seconds."""

    begins: float
    ends: float

    def validity(self, now: float) -> "Validity":
        """Returns the certificate's state at that instant."""
        near = min(_LONGEST_WARNING_SECONDS, _WARNING_SHARE * (self.ends - self.begins))
        if now >= self.ends:
            return Validity.OVER
        return Validity.NEAR_ITS_END if now >= self.ends - near else Validity.GOOD


class Validity(Enum):
    """Whether a certificate has to be renewed."""

    GOOD = "good"
    NEAR_ITS_END = "near its end"
    OVER = "over"


class ServerCertificate:
    """Serves the newest usable pair of the files, through its `context`.

    Args:
        files: Read now, and again by `run`.
        poll_seconds: Between two checks of the files.
        clock: For the certificate's end, and for the log.

    Raises:
        CertificateUnusable: The present pair is not usable.
    """

    def __init__(self, files: Files, poll_seconds: float, clock: Clock) -> None:
        self._files = files
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._fault = Fault("certificate", clock)
        self._warned = Validity.GOOD
        self.pair = _read(files)
        self._present = _loaded(self.pair)
        self._lifetime = _tested(self._present, self.pair)
        # A new pair gets a new context: a context keeps one certificate for each type of key, so after a change of the
        # type it would go on serving the old one.
        self.context = _context()
        self.context.sni_callback = self._choose
        self._warn()

    async def run(self) -> None:
        """Root task: checks the files."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            self.reload()

    def reload(self) -> None:
        """Loads certificate and key from the files, and uses them if they are new and usable."""
        try:
            found = _read(self._files)
            if found != self.pair:
                context = _loaded(found)
                self._lifetime = _tested(context, found)
                self.pair, self._present = found, context
                left = self._lifetime.ends - self._clock.wall()
                _log.info("certificate.exchanged", days_left=round(left / _DAY, 1))
        except CertificateUnusable as error:
            self._fault.failed(str(error))
        else:
            self._fault.recovered()
        self._warn()

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _outer: ssl.SSLContext) -> None:
        connection.context = self._present

    def _warn(self) -> None:
        """Logs a warning once for each change for the worse."""
        now = self._clock.wall()
        validity = self._lifetime.validity(now)
        if validity is not self._warned and validity is not Validity.GOOD:
            days_left = round((self._lifetime.ends - now) / _DAY, 1)
            _log.warning("certificate.ends", validity=validity.value, days_left=days_left)
        self._warned = validity


def _read(files: Files) -> Pair:
    try:
        return Pair(files.certificate.read_bytes(), files.key.read_bytes())
    except OSError as error:
        raise CertificateUnusable(f"{error.filename}: {error.strerror}") from error


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # No resumption: each connection verifies the certificate that is served now.
    return context


def _loaded(pair: Pair) -> ssl.SSLContext:
    """Loads the pair from memory. The ssl module accepts only files, and the files on disk may have changed since."""
    context = _context()
    try:
        with os.fdopen(os.memfd_create("certificate"), "wb") as file:
            file.write(pair.key + b"\n" + pair.certificate)
            file.flush()
            # Without this function OpenSSL would ask for a passphrase at the terminal.
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_passphrase)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise CertificateUnusable(f"the certificate and its key are not PEM, or do not match: {error}") from error
    return context


def _no_passphrase() -> NoReturn:
    raise ValueError("the key is encrypted")


def _tested(context: ssl.SSLContext, pair: Pair) -> Lifetime:
    """Performs a handshake with a client that trusts this very leaf, and returns the certificate's lifetime.

    Raises:
        CertificateUnusable: The client refuses a server with this pair.
    """
    try:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False  # The names that clients use are not known here.
        # The issuer is not known here, and an expired certificate is warned of: not to start would help nobody.
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
        client.load_verify_locations(cadata=pair.certificate.decode("ascii"))
        upwards, downwards = ssl.MemoryBIO(), ssl.MemoryBIO()
        caller = client.wrap_bio(downwards, upwards)
        answerer = context.wrap_bio(upwards, downwards, server_side=True)
        for side in (caller, answerer, caller):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        seen = dict(caller.getpeercert() or {})
    except (ssl.SSLError, ValueError) as error:
        raise CertificateUnusable(f"no client would accept the certificate: {error}") from error
    return Lifetime(ssl.cert_time_to_seconds(str(seen["notBefore"])), ssl.cert_time_to_seconds(str(seen["notAfter"])))
