"""Parses network addresses in settings."""

import ipaddress
from dataclasses import dataclass

_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """A host, without brackets, and a port; port 0 stands for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Returns whether the host is certainly this machine: names other than `localhost` are not resolved."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse(text: str) -> Address:
    """Parses `host:port`, with an IPv6 host in brackets.

    Raises:
        ValueError: The text has another form.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise ValueError(f"{text!r} is not host:port")
    if not (port.isascii() and port.isdecimal() and int(port) <= _MAX_PORT):
        raise ValueError(f"{text!r} has no port between 0 and {_MAX_PORT}")
    return Address(host[1:-1] if bracketed else host, int(port))
