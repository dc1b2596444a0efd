"""What elastic agents of torchrun say over HTTP, and what becomes of it."""

from typing import Any

from tests.testkit.serving import PeerRefusal, Served

NODES = ["n1", "n2"]
MALFORMED: tuple[tuple[str, Any], ...] = (
    ("processes", 0),
    ("round", -1),
    ("store", {"round": 1}),
    ("waits", "yes"),
    ("known", {"number": 2, "hosts": []}),
    ("known", {"number": 2, "hosts": ["n1", "n2", "n1"]}),
)


async def test_members_form_a_round_and_learn_the_address_of_its_store(served: Served) -> None:
    await served.peers.agents(NODES)
    _, order = await served.peers.running("job", NODES, framework="torchrun")
    members = [await served.peers.member(order["token"], host) for host in reversed(NODES)]
    for member in members:
        line = await member.enters(1)
        assert [each["host"] for each in line["round"]["members"]] == NODES
    line = await members[0].lines.matching(type="rendezvous")
    assert line["round"]["store"] == {"address": "127.0.0.1", "port": 4001}
    assert line["round"]["members"][1] == {"member": "member-on-n2", "host": "n2", "address": "n2:0", "processes": 2}


async def test_malformed_states_and_older_revisions_are_refused(served: Served) -> None:
    await served.peers.agents(NODES)
    _, order = await served.peers.running("job", NODES, framework="torchrun")
    member = await served.peers.member(order["token"], "n1")
    good = member.state
    for field, value in MALFORMED:
        assert await member.says(**{field: value}) == PeerRefusal(400, "malformed"), (field, value)
        member.state = good
    assert await member.says() == PeerRefusal(200, None)
    older = {"member": "member-on-n1", "host": "n1", "run": None, "state": good, "revision": 0}
    refusal = await served.peers.post("/v1/rendezvous/report", order["token"], older)
    assert refusal == PeerRefusal(409, "older_revision")
