"""What a subscriber and a publisher of a broker say, as Redis and NATS document it. Payloads are one line."""

from collections.abc import Callable
from dataclasses import dataclass

PAYLOAD = b"{"
"""The first byte of each line that is a payload."""


@dataclass(frozen=True, slots=True)
class BrokerDialect:
    """How clients of one broker speak.

    Attributes:
        greets: Whether the broker speaks first, in plain text; TLS begins after that line.
        subscribe: What a subscriber sends for a channel.
        subscribed: The beginning of the line which says that the subscription is there.
        publish: What a publisher sends: for a channel, a payload.
        ping: The beginning of a line that has to be answered with `pong`; empty if there is none.
    """

    greets: bool
    subscribe: Callable[[str], bytes]
    subscribed: bytes
    publish: Callable[[str, bytes], bytes]
    ping: bytes = b""
    pong: bytes = b""


def _redis(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


REDIS = BrokerDialect(
    greets=False,
    subscribe=lambda channel: _redis(b"SUBSCRIBE", channel.encode()),
    subscribed=b":",
    publish=lambda channel, payload: _redis(b"PUBLISH", channel.encode(), payload),
)
# The pong to a ping of our own says that the broker has taken what was sent before it.
_NATS_HELLO = b'CONNECT {"verbose": false, "tls_required": true}\r\n'
NATS = BrokerDialect(
    greets=True,
    subscribe=lambda channel: _NATS_HELLO + b"SUB %s 1\r\nPING\r\n" % channel.encode(),
    subscribed=b"PONG",
    publish=lambda channel, payload: b"PUB %s %d\r\n%s\r\n" % (channel.encode(), len(payload), payload),
    ping=b"PING",
    pong=b"PONG\r\n",
)
DIALECTS = {"redis": REDIS, "nats": NATS}
