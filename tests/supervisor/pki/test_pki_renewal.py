"""A supervisor's own certificate: when it is issued anew, and that nothing but the keys is needed for that."""

import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.errors import ApiUnavailableError
from supervisor.pki.keys import CA, CA_KEY, DAY, TOKENS, CertificateAuthority, Keys, KeysError, key_pem, pem
from supervisor.pki.renewal import CertificateOptions, CertificateRenewer, KeysSecret

MONTH = 30 * DAY


class Time(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def now(self) -> float:
        return super().now() + self.passed


class Chain(KeysSecret):
    """Holds what the test puts there, or fails as it says."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.trouble: Exception | None = None

    async def obtain(self, known: Keys | None = None) -> Keys:
        assert known is not None
        if self.trouble is not None:
            raise self.trouble
        return self.keys


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def chain(time: Time) -> Chain:
    return Chain(Keys.make(time.now()))


@pytest.fixture
def renewal(chain: Chain, time: Time, tmp_path: Path) -> CertificateRenewer:
    return CertificateRenewer(
        chain,
        chain.keys,
        CertificateOptions(directory=tmp_path / "tls", names=("localhost",), seconds=MONTH),
        time,
        Bulkhead(Clock()),
    )


def served(renewal: CertificateRenewer) -> bytes:
    assert renewal.certificate is not None
    return renewal.certificate.pair.certificate


async def test_it_is_renewed_in_time_and_not_before(renewal: CertificateRenewer, time: Time) -> None:
    first = served(renewal)
    time.passed = 19.9 * DAY
    await renewal.once()
    assert served(renewal) == first
    time.passed = 20.1 * DAY
    await renewal.once()
    assert served(renewal) != first


@pytest.mark.parametrize("trouble", [ApiUnavailableError("away"), KeysError("damaged")])
async def test_it_is_renewed_also_while_the_secret_cannot_be_had(
    renewal: CertificateRenewer, chain: Chain, time: Time, trouble: Exception
) -> None:
    first = served(renewal)
    chain.trouble = trouble
    time.passed = 21 * DAY
    with capture_logs() as logged:
        await renewal.once()
        await renewal.once()
    assert served(renewal) != first
    assert [line["reason"] for line in logged if line["event"] == "dependency.failing"] == [str(trouble)]


async def test_another_authority_issues_at_once(renewal: CertificateRenewer, chain: Chain, time: Time) -> None:
    first = served(renewal)
    chain.keys = Keys.read({**Keys.make(time.now()).content, TOKENS: chain.keys.tokens}, time.now())
    await renewal.once()
    assert served(renewal) != first
    assert renewal.keys.trusted == chain.keys.trusted


async def test_another_token_secret_is_said_as_it_takes_a_restart(renewal: CertificateRenewer, chain: Chain) -> None:
    """All supervisors at once, or they would refuse each other's tokens."""
    chain.keys = Keys.read({**chain.keys.content, TOKENS: b"y" * 64}, 0)
    with capture_logs() as logged:
        await renewal.once()
        await renewal.once()
    assert [line["event"] for line in logged if line["log_level"] == "warning"] == ["keys.token_secret_changed"]


async def test_the_files_are_this_users_alone_and_may_fail(
    renewal: CertificateRenewer, time: Time, tmp_path: Path
) -> None:
    """What cannot be written is said, the old certificate goes on, and it is tried again."""
    directory = tmp_path / "tls"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {0o600}
    first = served(renewal)
    time.passed = 21 * DAY
    directory.rename(tmp_path / "elsewhere")
    with capture_logs() as logged:
        await renewal.once()
    assert served(renewal) == first
    assert [line["dependency"] for line in logged if line["event"] == "dependency.failing"] == ["certificate files"]
    (tmp_path / "elsewhere").rename(directory)
    await renewal.once()
    assert served(renewal) != first
    assert sorted(file.name for file in directory.iterdir()) == ["tls.crt", "tls.key"]


async def test_the_end_of_the_authority_is_said_each_day(time: Time, tmp_path: Path) -> None:
    authority = CertificateAuthority.make(time.now(), days=300)
    content = {CA: pem(authority.certificate), CA_KEY: key_pem(authority.key), TOKENS: b"x" * 32}
    chain = Chain(Keys.read(content, time.now()))
    with capture_logs() as logged:
        renewal = CertificateRenewer(
            chain,
            chain.keys,
            CertificateOptions(directory=tmp_path / "tls", names=(), seconds=MONTH),
            time,
            Bulkhead(Clock()),
        )
        assert renewal.certificate is None
        for day in (150, 201, 201.5, 202.1):
            time.passed = day * DAY
            await renewal.once()
    assert [line["days_left"] for line in logged if line["event"] == "authority.ends"] == [99.0, 97.9]
