"""The content of the keys Secret: the CA of all supervisors, and the key that signs their tokens."""

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
    """The decoded content.

    Attributes:
        authority: Issues the supervisors' certificates.
        trusted: PEM, public: the CA, followed by further CAs that clients should trust.
        tokens: The key that signs tokens.
        content: The data of the Secret.
    """

    authority: Authority
    trusted: bytes
    tokens: bytes = field(repr=False)
    content: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def make(cls, now: float) -> Self:
        """Creates new keys; `now` is Unix seconds."""
        authority = Authority.make(now)
        tokens = secrets.token_hex(_SECRET_BYTES).encode()
        return cls.read({CA: pem(authority.certificate), CA_KEY: authority.key_pem, TOKENS: tokens}, now)

    @classmethod
    def read(cls, content: Mapping[str, bytes], now: float) -> Self:
        """Decodes the data of a Secret.

        Raises:
            KeysError: Something is missing, invalid or expired.
        """
        missing = [name for name in (CA, CA_KEY, TOKENS) if not content.get(name)]
        if missing:
            raise KeysError(f"{', '.join(missing)} missing")
        if len(content[TOKENS]) < _SECRET_BYTES:
            raise KeysError(f"{TOKENS} is too short: it must have at least {_SECRET_BYTES} bytes")
        authority = Authority.read(content[CA], content[CA_KEY])
        if authority.not_after <= now:
            raise KeysError(
                f"the authority in {CA} ended on {datetime.fromtimestamp(authority.not_after, UTC):%Y-%m-%d}"
            )
        # Encoded again, as other text between the certificates may not be public.
        trusted = b"".join(pem(each) for each in certificates(content[CA]))
        return cls(authority, trusted, content[TOKENS], content)
