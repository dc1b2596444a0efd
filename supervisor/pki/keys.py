"""The keys of the supervisors: their CA with the certificates that it issues, and the key that signs their tokens.

They are the content of one Secret. Pure, except for random numbers.
"""

import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA, CA_KEY, TOKENS = "ca.crt", "ca.key", "tokens.key"
"""The entries of the Secret."""
_SECRET_BYTES = 32

DAY = 86400.0
CA_DAYS = 3650
_BACKDATED = 3600.0
"""Certificates are backdated by this many seconds, as the clocks of clients may be slow."""

_LEFT = 1 / 3
"""A certificate is renewed when this part of its life is left: with 30 days, ten days to repair what fails."""

_WARNING_DAYS = 365

_MARK_BYTES = 4
"""Random bytes in the CA's name, which tell people an old CA from a new one."""

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class KeysError(Exception):
    """The keys can neither be read nor created. An administrator has to act; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A server certificate and its key; instants in Unix seconds.

    Clients have the certificate of its `issuer`, which is not served with it.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    issuer: x509.Certificate
    not_before: float
    not_after: float


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """A CA and its key."""

    certificate: x509.Certificate
    key: Key = field(repr=False)

    @classmethod
    def make(cls, now: float, days: float = CA_DAYS) -> Self:
        """Creates a CA that is valid from `now` on (Unix seconds)."""
        key = ec.generate_private_key(ec.SECP256R1())
        mark = secrets.token_hex(_MARK_BYTES)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"elastic-job-supervisor CA {mark}")])
        builder = _builder(name, key.public_key(), name, now, now + days * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def read(cls, certificate: bytes, key: bytes) -> Self:
        """Reads a CA from PEM. The first of several certificates is the CA's own.

        Raises:
            KeysError: The certificate is not a CA's, or the key does not belong to it.
        """
        own = _certificates(certificate)[0]
        try:
            secret = load_pem_private_key(key, None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it is encrypted.
            raise KeysError("ca.key contains no key as PEM, or an encrypted one") from error
        if not isinstance(secret, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise KeysError("ca.key is neither an EC nor an RSA key")
        if own.public_key() != secret.public_key():
            raise KeysError("ca.key is not the key of the first certificate in ca.crt")
        try:
            is_authority = own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except (x509.ExtensionNotFound, ValueError) as error:
            raise KeysError("the first certificate in ca.crt is that of no authority") from error
        if not is_authority:
            raise KeysError("the first certificate in ca.crt is that of no authority")
        return cls(own, secret)

    @property
    def not_after(self) -> float:
        """The end of the CA's life in Unix seconds; its certificates are invalid from then on."""
        return self.certificate.not_valid_after_utc.timestamp()

    def issue(self, names: tuple[str, ...], now: float, seconds: float) -> Leaf:
        """Issues a server certificate for DNS names and addresses, valid for `seconds` or until the CA's own end."""
        key = ec.generate_private_key(ec.SECP256R1())
        not_after = min(now + seconds, self.not_after)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "elastic-job-supervisor")])
        # By the identifier of the CA's key, clients that trust several CAs find the right one.
        try:
            own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
        except x509.ExtensionNotFound:
            identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _builder(subject, key.public_key(), self.certificate.subject, now, not_after)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(identifier, critical=False)
        )
        certificate = builder.sign(self.key, hashes.SHA256())
        return Leaf(pem(certificate), key_pem(key), self.certificate, now, not_after)

    def needs_renewal(self, leaf: Leaf, now: float) -> bool:
        """Returns whether another CA issued a certificate, or at most a third of its life is left."""
        if leaf.issuer != self.certificate:
            return True
        # Near the CA's own end a new certificate would not be valid for longer.
        return self.not_after > leaf.not_after and leaf.not_after - now <= (leaf.not_after - leaf.not_before) * _LEFT

    def expires_soon(self, now: float) -> bool:
        """Returns whether an administrator should rotate the CA, which takes at least as long as the longest job."""
        not_before = self.certificate.not_valid_before_utc.timestamp()
        return self.not_after - now <= min(_WARNING_DAYS * DAY, (self.not_after - not_before) * _LEFT)


@dataclass(frozen=True, slots=True)
class Keys:
    """The decoded content of the Secret.

    Attributes:
        authority: Issues the supervisors' certificates.
        trusted: PEM, public: the CA, followed by further CAs that clients should trust.
        tokens: The key that signs tokens.
        content: The data of the Secret.
    """

    authority: CertificateAuthority
    trusted: bytes
    tokens: bytes = field(repr=False)
    content: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def make(cls, now: float) -> Self:
        """Creates new keys; `now` is Unix seconds."""
        authority = CertificateAuthority.make(now)
        tokens = secrets.token_hex(_SECRET_BYTES).encode()
        return cls.read({CA: pem(authority.certificate), CA_KEY: key_pem(authority.key), TOKENS: tokens}, now)

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
        authority = CertificateAuthority.read(content[CA], content[CA_KEY])
        if authority.not_after <= now:
            raise KeysError(
                f"the authority in {CA} ended on {datetime.fromtimestamp(authority.not_after, UTC):%Y-%m-%d}"
            )
        # Encoded again, as other text between the certificates may not be public.
        trusted = b"".join(pem(each) for each in _certificates(content[CA]))
        return cls(authority, trusted, content[TOKENS], content)


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def key_pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _certificates(text: bytes) -> tuple[x509.Certificate, ...]:
    """Reads all certificates of a PEM, at least one.

    Raises:
        KeysError: There is no certificate, or one cannot be read.
    """
    try:
        return tuple(x509.load_pem_x509_certificates(text))
    except ValueError as error:
        raise KeysError(f"ca.crt contains no certificates as PEM: {error}") from error


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name, now: float, not_after: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(int(now - _BACKDATED), UTC))
        .not_valid_after(datetime.fromtimestamp(int(not_after), UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
