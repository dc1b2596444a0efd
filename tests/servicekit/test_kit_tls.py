"""A server certificate that is exchanged while it serves."""

import contextlib
import datetime as dt
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from structlog.testing import capture_logs

from servicekit.clock import Clock
from servicekit.tls import CertificateUnusable, Files, Lifetime, ServerCertificate, Validity
from simulator.certificates import SimulatedAuthority

DAY = 86400.0


@pytest.fixture
def authority(tmp_path: Path) -> SimulatedAuthority:
    return SimulatedAuthority(tmp_path / "tls")


def certificate(authority: SimulatedAuthority) -> ServerCertificate:
    """What serves the authority's files; nothing looks at them but `look`."""
    return ServerCertificate(Files(authority.cert_file, authority.key_file), 5.0, Clock())


def shown(served: ServerCertificate, ca: bytes, name: str | None = "localhost") -> bytes:
    """The leaf that a client of that name sees, as PEM.

    Raises:
        ssl.SSLError: It does not accept it.
    """
    context = ssl.create_default_context(cadata=ca.decode())
    context.check_hostname = name is not None
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(back, there, server_hostname=name)
    server = served.context.wrap_bio(there, back, server_side=True)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return ssl.DER_cert_to_PEM_cert(client.getpeercert(binary_form=True) or b"").encode()


def encrypted(key: bytes) -> bytes:
    plain: Any = serialization.load_pem_private_key(key, password=None)
    form = serialization.PrivateFormat.PKCS8
    protection = serialization.BestAvailableEncryption(b"secret")
    sealed: bytes = plain.private_bytes(serialization.Encoding.PEM, form, protection)
    return sealed


def spoil(authority: SimulatedAuthority, how: str) -> None:
    pair = authority.cert_file.read_bytes(), authority.key_file.read_bytes()
    match how:
        case "key of another":
            authority.spoil()
        case "garbage":
            authority.place(b"\xff\x00garbage", pair[1])
        case "half a certificate":
            authority.place(pair[0][: len(pair[0]) // 2], pair[1])
        case "half a key":
            authority.place(pair[0], pair[1][: len(pair[1]) // 2])
        case "empty":
            authority.place(b"", b"")
        case "no key":
            (authority.key_file.parent / authority.key_file.readlink()).unlink()
        case "encrypted key":
            authority.place(pair[0], encrypted(pair[1]))
        case "not for servers":
            authority.place(*for_clients_only())


def for_clients_only() -> tuple[bytes, bytes]:
    """A certificate and its key that fit, but that no client would take from a server."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + dt.timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return made.public_bytes(encoding), key.private_bytes(encoding, form, serialization.NoEncryption())


WAYS: Sequence[str] = (
    "key of another",
    "garbage",
    "half a certificate",
    "half a key",
    "empty",
    "no key",
    "encrypted key",
    "not for servers",
)


@pytest.mark.parametrize("how", WAYS)
def test_nothing_unusable_is_served(authority: SimulatedAuthority, how: str) -> None:
    spoil(authority, how)
    with pytest.raises(CertificateUnusable):
        certificate(authority)


@pytest.mark.parametrize("how", WAYS)
def test_something_unusable_does_not_replace_what_is_served(authority: SimulatedAuthority, how: str) -> None:
    """It is said once, and taken back when a good pair is there."""
    served = certificate(authority)
    before = shown(served, authority.ca_pem)
    with capture_logs() as logged:
        spoil(authority, how)
        for _ in range(3):
            served.reload()
            assert shown(served, authority.ca_pem) == before
        after = authority.issue()
        served.reload()
    assert shown(served, authority.ca_pem) == after
    events = [entry["event"] for entry in logged if entry["log_level"] != "debug"]
    assert events == ["dependency.failing", "certificate.exchanged", "dependency.recovered"]


@pytest.mark.parametrize("name", ["localhost", None])
@pytest.mark.parametrize("types", [("ECDSA", "RSA"), ("RSA", "ECDSA"), ("RSA", "RSA")])
def test_the_new_certificate_is_shown_whatever_the_types_of_the_keys(
    authority: SimulatedAuthority, types: tuple[str, str], name: str | None
) -> None:
    """A context that was loaded twice would show the old one to clients that like its type better."""
    pairs = [authority.ca.issue_cert("localhost", key_type=trustme.KeyType[kind]) for kind in types]
    first, second = ((pair.cert_chain_pems[0].bytes(), pair.private_key_pem.bytes()) for pair in pairs)
    authority.place(*first)
    served = certificate(authority)
    assert shown(served, authority.ca_pem, name) == first[0]
    authority.place(*second)
    served.reload()
    assert shown(served, authority.ca_pem, name) == second[0]


def test_a_chain_is_served_whole(authority: SimulatedAuthority) -> None:
    """A client that knows the root alone accepts a leaf of an intermediate."""
    authority.issue(ca=authority.ca.create_child_ca())
    assert shown(certificate(authority), authority.ca_pem)


def test_nobody_resumes_an_earlier_session(authority: SimulatedAuthority) -> None:
    """A client that did would not see the new certificate."""
    assert certificate(authority).context.num_tickets == 0


def test_the_same_pair_again_is_no_change(authority: SimulatedAuthority) -> None:
    served = certificate(authority)
    with capture_logs() as logged:
        authority.place(authority.cert_file.read_bytes(), authority.key_file.read_bytes())
        served.reload()
    assert not logged


@pytest.mark.parametrize(
    ("days", "left", "expected"),
    [
        (365, 15, Validity.GOOD),
        (365, 14, Validity.NEAR_ITS_END),
        (90, 10, Validity.GOOD),
        (90, 8, Validity.NEAR_ITS_END),
        (1, 0.2, Validity.GOOD),
        (1, 0.1, Validity.NEAR_ITS_END),
        (365, 0, Validity.OVER),
        (365, -1, Validity.OVER),
    ],
)
def test_the_end_is_near_in_the_last_tenth_or_the_last_fortnight(days: float, left: float, expected: Validity) -> None:
    assert Lifetime(0.0, days * DAY).validity((days - left) * DAY) is expected


def test_a_certificate_that_is_over_is_served_with_one_warning(authority: SimulatedAuthority) -> None:
    """No service at all would help nobody; a new one ends the trouble."""
    past = [dt.datetime(year, 1, 1) for year in (2020, 2021)]  # noqa: DTZ001 - trustme wants it so.
    old = authority.ca.issue_cert("localhost", not_before=past[0], not_after=past[1])
    authority.place(old.cert_chain_pems[0].bytes(), old.private_key_pem.bytes())
    with capture_logs() as logged:
        served = certificate(authority)
        for _ in range(3):
            served.reload()
    assert [(entry["event"], entry["validity"]) for entry in logged] == [("certificate.ends", "over")]
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shown(served, authority.ca_pem)
    authority.issue()
    served.reload()
    assert shown(served, authority.ca_pem)
