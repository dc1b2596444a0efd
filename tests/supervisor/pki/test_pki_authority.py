"""The authority that supervisors make, what it issues, and what of a Secret is refused."""

import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from supervisor.pki.keys import CA, CA_KEY, DAY, TOKENS, CertificateAuthority, Keys, KeysError, Leaf, key_pem, pem

NAMES = ("supervisor.arena-system.svc", "10.1.2.3", "::1")
NOW = time.time()
MONTH = 30 * DAY


def shake_hands(leaf: Leaf, trusted: bytes, directory: Path, name: str = NAMES[0]) -> None:
    """What a client does that asks for all that can be asked of a certificate.

    Raises:
        ssl.SSLCertVerificationError: It does not accept it.
    """
    client = ssl.create_default_context(cadata=trusted.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = directory / "pair.pem"
    file.write_bytes(leaf.key + leaf.certificate)
    server.load_cert_chain(file)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(down, up, server_hostname=name)
    answerer = server.wrap_bio(up, down, server_side=True)
    for side in (caller, answerer, caller):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


@pytest.mark.parametrize("name", NAMES)
def test_a_client_accepts_each_name(name: str, tmp_path: Path) -> None:
    """Names and addresses alike, with OpenSSL's strict rules, which clients of Python 3.13 have by default."""
    keys = Keys.make(NOW)
    shake_hands(keys.authority.issue(NAMES, NOW, MONTH), keys.trusted, tmp_path, name)


def test_a_client_refuses_another_name_and_another_authority(tmp_path: Path) -> None:
    """An authority signs for what it was asked to, and two that were made alike are two."""
    keys, other = Keys.make(NOW), Keys.make(NOW)
    leaf = keys.authority.issue(NAMES, NOW, MONTH)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        shake_hands(leaf, keys.trusted, tmp_path, "other.example")
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        shake_hands(leaf, other.trusted, tmp_path)


def test_a_client_refuses_what_has_ended(tmp_path: Path) -> None:
    keys = Keys.make(NOW - MONTH)
    leaf = keys.authority.issue(NAMES, NOW - 2 * DAY, DAY)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(leaf, keys.trusted, tmp_path)


def test_a_client_that_trusts_both_accepts_certificates_of_either(tmp_path: Path) -> None:
    old, new = Keys.make(NOW), Keys.make(NOW)
    for keys in (old, new):
        leaf = keys.authority.issue(NAMES, NOW, MONTH)
        for trusted in (old.trusted + new.trusted, new.trusted + old.trusted):
            shake_hands(leaf, trusted, tmp_path)


def test_the_authority_is_good_for_ten_years_and_signs_servers_only() -> None:
    keys = Keys.make(NOW)
    certificate = keys.authority.certificate
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    assert keys.authority.not_after == pytest.approx(NOW + 3650 * DAY, abs=2)
    leaf = x509.load_pem_x509_certificate(keys.authority.issue(NAMES, NOW, MONTH).certificate)
    use = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(use) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert isinstance(leaf.public_key(), ec.EllipticCurvePublicKey)


def test_no_certificate_is_good_for_longer_than_its_authority() -> None:
    """Clients would refuse it all the same, and nothing would have warned."""
    authority = CertificateAuthority.make(NOW, days=10)
    leaf = authority.issue(NAMES, NOW, MONTH)
    assert leaf.not_after == authority.not_after
    said = x509.load_pem_x509_certificate(leaf.certificate).not_valid_after_utc
    assert said == datetime.fromtimestamp(int(authority.not_after), UTC)


def test_a_certificate_is_renewed_when_a_third_is_left() -> None:
    """No sooner; at once under another authority; and not where a new one would end no later."""
    authority = CertificateAuthority.make(NOW)
    leaf = authority.issue(NAMES, NOW, MONTH)
    assert not authority.needs_renewal(leaf, NOW)
    assert not authority.needs_renewal(leaf, NOW + 19.9 * DAY)
    assert authority.needs_renewal(leaf, NOW + 20.1 * DAY)
    assert CertificateAuthority.make(NOW).needs_renewal(leaf, NOW)
    short = CertificateAuthority.make(NOW, days=10)
    last = short.issue(NAMES, NOW, MONTH)
    assert not short.needs_renewal(last, NOW + 9.9 * DAY)


@pytest.mark.parametrize(("days", "quiet", "warns"), [(3650, 3284, 3286), (90, 59, 61)])
def test_the_end_of_an_authority_is_near_long_before(days: float, quiet: float, warns: float) -> None:
    authority = CertificateAuthority.make(NOW, days)
    assert not authority.expires_soon(NOW + quiet * DAY)
    assert authority.expires_soon(NOW + warns * DAY)


def test_what_is_made_reads_as_it_was() -> None:
    made = Keys.make(NOW)
    assert Keys.read(made.content, NOW).content == made.content
    assert Keys.make(NOW).content[TOKENS] != made.content[TOKENS]
    assert len(made.tokens) == 64


def test_a_key_is_not_shown() -> None:
    keys = Keys.make(NOW)
    shown = repr(keys) + repr(keys.authority) + repr(keys.authority.issue(NAMES, NOW, DAY))
    assert keys.tokens.decode() not in shown
    assert "PRIVATE" not in shown


def test_an_authority_of_somebody_elses_is_as_good(tmp_path: Path) -> None:
    ca = trustme.CA(key_type=trustme.KeyType.RSA)
    content = {CA: ca.cert_pem.bytes(), CA_KEY: ca.private_key_pem.bytes(), TOKENS: b"x" * 32}
    keys = Keys.read(content, NOW)
    leaf = keys.authority.issue(NAMES, NOW, MONTH)
    shake_hands(leaf, keys.trusted, tmp_path)


GOOD = Keys.make(NOW).content
OTHER = Keys.make(NOW)
LEAF = OTHER.authority.issue(NAMES, NOW, MONTH)
EDWARDS = ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
ENDED = CertificateAuthority.make(NOW - 20 * DAY, days=10)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({CA: None}, "ca.crt missing"),
        ({CA_KEY: b"", TOKENS: None}, "ca.key, tokens.key missing"),
        ({TOKENS: b"short"}, "tokens.key is too short"),
        ({CA: b"junk"}, "ca.crt contains no certificates"),
        ({CA: GOOD[CA][:200]}, "ca.crt contains no certificates"),
        ({CA_KEY: b"junk"}, "ca.key contains no key"),
        ({CA_KEY: GOOD[CA_KEY][:100]}, "ca.key contains no key"),
        ({CA_KEY: EDWARDS}, "neither an EC nor an RSA key"),
        ({CA_KEY: OTHER.content[CA_KEY]}, "not the key of the first certificate"),
        ({CA: OTHER.content[CA] + GOOD[CA]}, "not the key of the first certificate"),
        ({CA: LEAF.certificate, CA_KEY: LEAF.key}, "that of no authority"),
        ({CA: pem(ENDED.certificate), CA_KEY: key_pem(ENDED.key)}, "ended on 20"),
    ],
)
def test_a_damaged_secret_is_said_in_words(changes: Mapping[str, bytes | None], says: str) -> None:
    content = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(KeysError, match=says):
        Keys.read(content, NOW)


def test_only_certificates_are_published() -> None:
    """Whatever else somebody put beside them; the authority comes first, and those that are trusted beside it."""
    content = {**GOOD, CA: GOOD[CA] + b"a note\n" + GOOD[CA_KEY] + OTHER.content[CA]}
    assert Keys.read(content, NOW).trusted == GOOD[CA] + OTHER.content[CA]
