"""The channel to the supervisor: address, trust and token, read again for each connection."""

from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from servicekit.address import Address

# The largest legitimate message, acknowledgements of a full outbox, stays far below.
_MAX_BYTES = 256 * 1024

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"

_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_BYTES),
    ("grpc.max_send_message_length", _MAX_BYTES),
    # A proxy of the environment is meant for downloads; what goes through it carries our token.
    ("grpc.enable_http_proxy", 0),
    # A channel of its own for each connection: a shared one would carry its own back-off from one to the next.
    ("grpc.use_local_subchannel_pool", 1),
)


class NotConfigured(Exception):  # noqa: N818 - it names what is so
    """The token or the certificate cannot be had now: try again, somebody may be writing it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the supervisor is and how it is told who we are.

    Attributes:
        ca_file: Who signed its certificate; None for no TLS, which is good for loopback only.
    """

    address: Address
    token_file: Path
    ca_file: Path | None

    def channel(self) -> grpc.aio.Channel:
        """A new channel.

        Raises:
            NotConfigured: The CA file cannot be read, or is none.
        """
        if self.ca_file is None:
            return grpc.aio.insecure_channel(str(self.address), options=_OPTIONS)
        trusted = _read(self.ca_file)
        if _CERTIFICATE not in trusted:
            # For an empty file gRPC takes its default CAs, as for none (seen with 1.85 and a CA among the defaults).
            raise NotConfigured(f"{self.ca_file} holds no certificate")
        credentials = grpc.ssl_channel_credentials(root_certificates=trusted)
        return grpc.aio.secure_channel(str(self.address), credentials, options=_OPTIONS)

    def explain(self, trouble: str) -> str:
        """What went wrong on the channel, with what a server that wants TLS does not say."""
        return trouble if self.ca_file else f"{trouble} (spoken to without TLS, as there is no CA file)"

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The call's metadata with the token.

        Raises:
            NotConfigured: The token cannot be read, or is none.
        """
        token = _read(self.token_file).decode("ascii", errors="replace").strip()
        # gRPC would send some of these, and call the others an illegal header without saying where it came from.
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise NotConfigured(f"{self.token_file} holds no token")
        return (("authorization", f"Bearer {token}"),)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotConfigured(f"{path}: {error.strerror}") from error
