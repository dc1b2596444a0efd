"""A server certificate that is exchanged while it serves.

The two files are compared by content every few seconds, because whoever exchanges them (a Kubernetes secret, a renewal
job) swaps links or renames and says nothing. A pair is tried by a handshake in memory before anybody else sees it; one
that is half-written or otherwise no good is refused, and the old one goes on. Open connections keep what they have.
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
_WARNING_SHARE = 0.1  # Whatever renews a certificate does so long before the last tenth of its life.
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which the ssl module has no name for.

_log = structlog.get_logger()


class CertificateUnusable(Exception):  # noqa: N818 - it names what is so
    """There is no pair that could be served: correct the files. The text says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where the certificate is: PEM, the leaf first and then its chain, and the leaf's key, not encrypted."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate chain and its key, as they were read together."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a certificate is good, in Unix seconds."""

    begins: float
    ends: float

    def validity(self, now: float) -> "Validity":
        """What there is to say about it now."""
        near = min(_LONGEST_WARNING_SECONDS, _WARNING_SHARE * (self.ends - self.begins))
        if now >= self.ends:
            return Validity.OVER
        return Validity.NEAR_ITS_END if now >= self.ends - near else Validity.GOOD


class Validity(Enum):
    """Whether somebody should see to a new certificate."""

    GOOD = "good"
    NEAR_ITS_END = "near its end"
    OVER = "over"


class ServerCertificate:
    """Serves the newest good pair of the files.

    Args:
        files: Read now, and again by `run`.
        poll_seconds: Between two looks at the files.
        clock: For the certificate's end, and for the log.

    Raises:
        CertificateUnusable: The pair that is there now is no good.
    """

    def __init__(self, files: Files, poll_seconds: float, clock: Clock) -> None:
        self._files = files
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._fault = Fault("certificate", clock)
        self._warned = Validity.GOOD
        self.pair = _read(files)
        self._present = _loaded(self.pair)
        self._lifetime = _tried(self._present, self.pair)
        # The context that a connection ends up with is exchanged, and not loaded anew: it keeps one certificate for
        # each type of key, and would go on serving the old one after a change of type.
        self.context = _context()
        self.context.sni_callback = self._choose
        self._warn()

    async def run(self) -> None:
        """Look at the files for ever."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            self.look()

    def look(self) -> None:
        """Take a new pair if there is a good one."""
        try:
            found = _read(self._files)
            if found != self.pair:
                self._take(found)
        except CertificateUnusable as error:
            self._fault.failed(str(error))
        else:
            self._fault.recovered()
        self._warn()

    def _take(self, found: Pair) -> None:
        context = _loaded(found)
        self._lifetime = _tried(context, found)
        self.pair, self._present = found, context
        _log.info("certificate.exchanged", days_left=self._days_left())

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _outer: ssl.SSLContext) -> None:
        connection.context = self._present

    def _warn(self) -> None:
        """Once for each turn for the worse."""
        validity = self._lifetime.validity(self._clock.wall())
        if validity is not self._warned and validity is not Validity.GOOD:
            _log.warning("certificate.ends", validity=validity.value, days_left=self._days_left())
        self._warned = validity

    def _days_left(self) -> float:
        return round((self._lifetime.ends - self._clock.wall()) / _DAY, 1)


def _read(files: Files) -> Pair:
    try:
        return Pair(files.certificate.read_bytes(), files.key.read_bytes())
    except OSError as error:
        raise CertificateUnusable(f"{error.filename}: {error.strerror}") from error


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # Nobody resumes: each connection verifies the certificate that is served now.
    return context


def _loaded(pair: Pair) -> ssl.SSLContext:
    context = _context()
    try:
        _load(context, pair)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise CertificateUnusable(f"the certificate and its key are no PEM, or do not fit: {error}") from error
    return context


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    """The ssl module loads from files only, and those on disk may have changed since they were read."""
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(pair.key + b"\n" + pair.certificate)
        file.flush()
        # Without a function OpenSSL would ask a terminal for the passphrase.
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_passphrase)


def _no_passphrase() -> NoReturn:
    raise ValueError("the key is encrypted")


def _tried(context: ssl.SSLContext, pair: Pair) -> Lifetime:
    """What a client that trusts this very leaf sees in a handshake.

    Raises:
        CertificateUnusable: It would not talk to a server with this pair.
    """
    try:
        seen = _handshake(context, _trusting(pair))
    except (ssl.SSLError, ValueError) as error:
        raise CertificateUnusable(f"no client would accept the certificate: {error}") from error
    return Lifetime(ssl.cert_time_to_seconds(str(seen["notBefore"])), ssl.cert_time_to_seconds(str(seen["notAfter"])))


def _trusting(pair: Pair) -> ssl.SSLContext:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # Which names clients use is theirs to know.
    # Its issuer need not be known here, and its end is warned of: refusing to start would help nobody.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    client.load_verify_locations(cadata=pair.certificate.decode("ascii"))
    return client


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, object]:
    upwards, downwards = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(downwards, upwards)
    answerer = server.wrap_bio(upwards, downwards, server_side=True)
    for side in (caller, answerer, caller):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return dict(caller.getpeercert() or {})
