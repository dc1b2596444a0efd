"""Draws addresses of the loopback network, at which no other program of the machine takes a port."""

import random


def drawn_address() -> str:
    """Return one of sixteen million addresses."""
    return f"127.{random.randint(1, 254)}.{random.randint(0, 255)}.{random.randint(1, 254)}"  # noqa: S311  # No secret.
