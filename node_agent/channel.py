"""Opens the gRPC channel to the supervisor. The CA and the token are read again for each connection."""

from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from servicekit.address import Address

# The largest legitimate message, acknowledgements of a full outbox, stays far below.
_MAX_BYTES = 256 * 1024

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"

OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_BYTES),
    ("grpc.max_send_message_length", _MAX_BYTES),
    # A proxy in the environment is meant for downloads; it would see our token.
    ("grpc.enable_http_proxy", 0),
    # A supervisor that answers no ping for 10 s is gone. Its own pings, every 60 s, usually take the place of these.
    # Without the last option gRPC would not send a third one without data in between.
    ("grpc.keepalive_time_ms", 70_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Where a frozen peer's kernel acknowledges the ping, this counts instead; the default is 60 s.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Otherwise gRPC pings every 10 s to measure the bandwidth, however little is sent.
    ("grpc.http2.bdp_probe", 0),
    # Each connection has its own subchannel: a shared one would carry its backoff over to the next connection.
    ("grpc.use_local_subchannel_pool", 1),
)


class SupervisorUnusable(Exception):  # noqa: N818 - it names what is so
    """The token or the CA file is not usable now. Try again: another program may just be writing it."""


@dataclass(frozen=True, slots=True)
class SupervisorEndpoint:
    """The supervisor's address and the files for TLS and authentication.

    Attributes:
        ca_file: The CA of the supervisor's certificate; None for no TLS, which is for loopback only.
    """

    address: Address
    token_file: Path
    ca_file: Path | None

    def channel(self) -> grpc.aio.Channel:
        """Opens a new channel.

        Raises:
            SupervisorUnusable: The CA file cannot be read, or has no certificate.
        """
        if self.ca_file is None:
            return grpc.aio.insecure_channel(str(self.address), options=OPTIONS)
        trusted = _read(self.ca_file)
        if _CERTIFICATE not in trusted:
            # For an empty file gRPC takes its default CAs (seen with 1.85 and a CA among the defaults).
            raise SupervisorUnusable(f"{self.ca_file} contains no CA certificate")
        credentials = grpc.ssl_channel_credentials(root_certificates=trusted)
        return grpc.aio.secure_channel(str(self.address), credentials, options=OPTIONS)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the call's metadata with the token.

        Raises:
            SupervisorUnusable: The token file cannot be read, or has no token.
        """
        token = _read(self.token_file).decode("ascii", errors="replace").strip()
        # gRPC would send some of these, and report the others as an illegal header without naming the file.
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise SupervisorUnusable(f"{self.token_file} contains no token")
        return (("authorization", f"Bearer {token}"),)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SupervisorUnusable(f"{path}: {error.strerror}") from error
