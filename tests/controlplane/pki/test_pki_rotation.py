"""The CA is rotated without an interruption, in the steps that the page gives."""

import ssl
from pathlib import Path

import pytest

from supervisor.pki.keys import CA, CA_KEY, Keys
from tests.controlplane.pki.pki_world import LOOKS_OFTEN, Shared, another, leaf, ports, published, serves_another
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

NODES = ["n1", "n2"]


async def test_an_authority_is_followed_by_another_one_under_open_streams(shared: Shared, tmp_path: Path) -> None:
    """Whoever trusts both is served all the time; at the end only the new one is trusted."""
    first = await shared.start(tls_leaf_hours=LOOKS_OFTEN)
    old = await shared.secret()
    new, key = another(tmp_path)
    async with shared.peers(first) as peers:
        agents = await peers.agents(NODES)
        launcher, _ = await peers.running("job", NODES, min_workers=1)
        await shared.change({CA: old[CA] + new})
        await published(shared, Keys.read({**old, CA: old[CA] + new}, 0).trusted)
        for address in ports(first):
            await leaf(address, old[CA])
        before = await leaf(ports(first)[1], old[CA])
        await shared.change({CA: new + old[CA], CA_KEY: key})
        await serves_another(first, new, before)
        for address in ports(first):
            await leaf(address, await shared.trusted())
            with pytest.raises(ssl.SSLCertVerificationError):
                await leaf(address, old[CA])
        await shared.change({CA: new})
        await published(shared, Keys.read({**old, CA: new, CA_KEY: key}, 0).trusted)
        # On the streams that were opened before any of this.
        await agents["n2"].notices("n2")
        await launcher.lines.matching(exclusions=["n2"])


async def test_a_change_that_is_no_good_is_said_and_the_old_keys_go_on(shared: Shared) -> None:
    first = await shared.start(tls_leaf_hours=LOOKS_OFTEN)
    good = await shared.secret()
    await shared.change({CA: Keys.make(0).content[CA]})
    await until(lambda: first.heard("dependency.failing"))
    before = await leaf(ports(first)[0], good[CA])
    # It goes on renewing with what it knows.
    await serves_another(first, good[CA], before)
    await shared.change(good)
    await until(lambda: first.heard("dependency.recovered"))
    assert first.process.poll() is None
    assert await shared.secret() == good
