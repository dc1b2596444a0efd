"""What the Secret holds: the authority of all supervisors, and the secret that they sign tokens with."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from supervisor.pki.authority import Authority, certificates, pem
from supervisor.pki.errors import KeysError

CA, CA_KEY, TOKENS = "ca.crt", "ca.key", "tokens.key"
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Keys:
    """All of it.

    Attributes:
        authority: Signs what supervisors serve with.
        trusted: PEM, for everybody: the authority, and those that clients are to trust beside it.
        tokens: What tokens are signed with.
        content: As it lies in the Secret.
    """

    authority: Authority
    trusted: bytes
    tokens: bytes = field(repr=False)
    content: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def make(cls, now: float) -> Self:
        """New ones; `now` is Unix seconds."""
        authority = Authority.make(now)
        tokens = secrets.token_hex(_SECRET_BYTES).encode()
        return cls.read({CA: pem(authority.certificate), CA_KEY: authority.key_pem, TOKENS: tokens}, now)

    @classmethod
    def read(cls, content: Mapping[str, bytes], now: float) -> Self:
        """From a Secret's content.

        Raises:
            KeysError: Something is missing, is not what it should be, or has ended.
        """
        missing = [name for name in (CA, CA_KEY, TOKENS) if not content.get(name)]
        if missing:
            raise KeysError(f"{', '.join(missing)} missing")
        if len(content[TOKENS]) < _SECRET_BYTES:
            raise KeysError(f"{TOKENS} is too short to be a secret, which has at least {_SECRET_BYTES} bytes")
        authority = Authority.read(content[CA], content[CA_KEY])
        if authority.not_after <= now:
            raise KeysError(
                f"the authority in {CA} ended on {datetime.fromtimestamp(authority.not_after, UTC):%Y-%m-%d}"
            )
        # Written anew, as whatever else lies between the certificates is not for everybody.
        trusted = b"".join(pem(each) for each in certificates(content[CA]))
        return cls(authority, trusted, content[TOKENS], content)
