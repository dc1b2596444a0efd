"""Parses resource quantities of Kubernetes."""

import re
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

_FACTORS = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_AMOUNT = re.compile(
    r"([+-]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20}))(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)

_KNOWN = 1024
"""Amounts that are read once: tens of thousands of pods have few different ones."""


@lru_cache(_KNOWN)
def thousandths(text: str) -> int:
    """An amount such as `4`, `500m`, `16Gi` or `1e3`, rounded up.

    Raises:
        ValueError: It is none.
    """
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no amount")
    number, exponent, suffix = match.groups()
    factor = Decimal(f"1e{exponent}") if exponent else _FACTORS[suffix or ""]
    return int((Decimal(number) * factor * 1000).to_integral_value(ROUND_CEILING))
