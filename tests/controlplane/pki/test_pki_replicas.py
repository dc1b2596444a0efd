"""Several supervisors, one CA and one token secret: made once, kept over everything that may happen to them."""

import asyncio
import ssl
import time
from contextlib import AsyncExitStack

import pytest

from supervisor.pki.keys import CA, CA_KEY, DAY, TOKENS, CertificateAuthority, Keys, key_pem, pem
from tests.controlplane.pki.pki_world import CONFIG_MAP_PATH, SECRET_PATH, Shared, leaf, ports, serves_another
from tests.testkit.controlplane.outages import frozen
from tests.testkit.serving import hello
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

NODES = ["n1", "n2", "n3"]
ENDED = CertificateAuthority.make(time.time() - 2 * DAY, days=1)
SHORT = 0.006
"""Hours: some 22 s, of which a third is left after fourteen; looked at every two."""


async def test_two_that_start_at_once_have_one_authority(shared: Shared) -> None:
    """One of them makes it; both say that they are ready; agents find it in the ConfigMap."""
    first, second = await asyncio.gather(shared.start(serving=False), shared.start(serving=False))
    made = [line for one in (first, second) for line in one.said() if line["event"] == "keys.made"]
    assert len(made) == 1
    await until(lambda: first.serves or second.serves)
    leader = first if first.serves else second
    await until(lambda: leader.heard("ca.published"))
    for address in ports(leader):
        await leaf(address, await shared.trusted())
    assert await shared.trusted() == (await shared.secret())[CA]
    assert "PRIVATE" not in str(await shared.api.get(CONFIG_MAP_PATH))
    assert "PRIVATE" not in first.log.read_text() + second.log.read_text()


async def test_many_that_make_keys_at_once_agree(shared: Shared) -> None:
    async with AsyncExitStack() as stack:
        chains = [await stack.enter_async_context(shared.keychain()) for _ in range(8)]
        found = await asyncio.gather(*(chain.obtain() for chain in chains))
    assert {tuple(keys.content.items()) for keys in found} == {tuple((await shared.secret()).items())}


@pytest.mark.brief
async def test_streams_stay_open_over_a_new_certificate_and_trust_outlives_the_leader(shared: Shared) -> None:
    """One certificate follows the other under open streams; the next leader is trusted and knows everybody's token."""
    first = await shared.start(tls_leaf_hours=SHORT)
    second = await shared.start(serving=False, tls_leaf_hours=SHORT)
    made = await shared.secret()
    async with shared.peers(first) as peers:
        agents = await peers.agents(NODES)
        launcher, order = await peers.running("job", NODES, min_workers=2)
        rank = await peers.process(order["token"], "n1", 0)
        await serves_another(first, made[CA], await leaf(ports(first)[1], made[CA]))
        await agents["n3"].notices("n3")
        await launcher.lines.matching(exclusions=["n3"])
        assert (await rank.lines.matching(type="directive"))["directive"] == "RUN"
        report = {name: value for name, value in launcher.report.items() if name not in ("job", "instance")}
    await first.kill()
    await until(lambda: second.serves)
    async with shared.peers(second) as peers:
        again = await peers.launcher("job", NODES, min_workers=2, report=report)
        assert (await again.lines.any())["exclusions"] == ["n3"]
        # What the first leader signed for the job's processes.
        assert await peers.process(order["token"], "n1", 0)
    assert await shared.secret() == made
    assert not second.heard("dependency.failing")


async def test_a_restart_keeps_what_everybody_trusts(shared: Shared) -> None:
    """Also of all of them at once, with nothing left on their disks."""
    first = await shared.start()
    made = await shared.secret()
    await first.kill()
    second = await shared.start()
    assert await shared.secret() == made
    for address in ports(second):
        await leaf(address, made[CA])
    assert not second.heard("keys.made")


async def test_whoever_trusts_another_authority_refuses(shared: Shared) -> None:
    first = await shared.start()
    for address in ports(first):
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            await leaf(address, Keys.make(0).trusted)


async def test_a_command_makes_tokens_that_the_supervisors_take(shared: Shared) -> None:
    """Before the first of them starts, too; nothing is made on this machine's disk."""
    before = await shared.token("launcher", "--name", "mine")
    assert before.returncode == 0, before.stderr
    first = await shared.start()
    after = await shared.token("agent", "--node", "n1", "--days", "1")
    async with shared.peers(first) as peers:
        refused = await peers.refused_or_open("/v1/launchers/stream", before.stdout.strip(), {})
        assert refused.code == "malformed"  # And not bad_token.
        agent = peers.stranger(after.stdout.strip())
        await agent.say(hello=hello("n1"))
        await agent.read("welcome")


async def test_a_secret_of_ones_own_is_taken(shared: Shared) -> None:
    own = Keys.make(time.time()).content
    await shared.put(own)
    first = await shared.start()
    assert await shared.secret() == own
    for address in ports(first):
        await leaf(address, own[CA])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({}, "ca.crt, ca.key, tokens.key missing"),
        ({CA_KEY: key_pem(ENDED.key)}, "not the key of the first certificate"),
        ({TOKENS: b"short"}, "tokens.key is too short"),
        ({CA: b"junk"}, "ca.crt holds no certificates"),
        ({CA: pem(ENDED.certificate), CA_KEY: key_pem(ENDED.key)}, "the authority in ca.crt ended on "),
    ],
    ids=["empty", "foreign key", "short", "junk", "ended"],
)
async def test_a_damaged_secret_ends_with_a_sentence_and_stays(
    shared: Shared, content: dict[str, bytes], says: str
) -> None:
    """Nothing is made in its place, by a supervisor or by the command: people have to say what is to be trusted."""
    put = {**Keys.make(time.time()).content, **content} if content else {"other": b"value"}
    await shared.put(put)
    with pytest.raises(AssertionError, match=says):
        await shared.start()
    (one,) = shared.replicas.all
    assert await one.ended() == 1
    last = one.log.read_text().splitlines()[-1]
    assert last.startswith("elastic-job-supervisor: Secret elastic-job-supervisor-keys in namespace default: ")
    assert "Traceback" not in one.log.read_text()
    command = await shared.token("viewer")
    assert (command.returncode, command.stdout) == (1, "")
    assert says in command.stderr
    assert await shared.secret() == put


async def test_without_the_right_to_the_secret_it_ends_with_a_sentence(shared: Shared) -> None:
    with pytest.raises(AssertionError, match=r"Secret other in namespace default: .*forbidden"):
        await shared.start(keys_secret="other")


async def test_an_api_server_that_is_away_at_the_start_is_waited_for(shared: Shared) -> None:
    with frozen(shared.replicas.place.plane):
        starting = asyncio.create_task(shared.start(serving=False, store_timeout_seconds=0.5))
        await until(lambda: shared.replicas.all and shared.replicas.all[0].heard("dependency.failing"))
        (one,) = shared.replicas.all
        assert (await one.probe("/livez"))[0] == 200
        assert (await one.probe("/readyz"))[0] != 200
        command = await shared.token("viewer", STORE_TIMEOUT_SECONDS="0.5")
        assert command.returncode == 1
        assert "the API server is unavailable" in command.stderr
    await starting
    assert await shared.secret()


async def test_the_keys_come_back_where_somebody_deletes_them(shared: Shared) -> None:
    first = await shared.start(tls_leaf_hours=SHORT)
    made = await shared.secret()
    await shared.api.delete(SECRET_PATH)

    async def back() -> bool:
        return await shared.secret() == made

    await until(back, "the Secret as it was")
    assert first.process.poll() is None
