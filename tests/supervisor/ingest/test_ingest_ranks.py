"""What ranks that agree on a step say over HTTP, and what becomes of it."""

from collections.abc import Mapping
from typing import Any

from supervisor.domain.job import Phase
from tests.testkit.serving import PeerRefusal, ProcessPeer, Served
from tests.testkit.waiting import until

NODES = ["n1", "n2", "n3"]
AGREES: Mapping[str, Any] = {"agrees": ["stop", "checkpoint"], "world_size": 3}
MALFORMED: tuple[Mapping[str, Any], ...] = (
    {"epoch": None},
    {"answer": None},
    {"answer": "perhaps"},
    {"epoch": -1},
    {"epoch": 2**40},
    {"step": -1},
    {"step": 1.5},
    {"step_seconds": -1.0},
    {"unread_seconds": "long"},
    {"world_size": 0},
    {"world_size": 10**9},
    {"agrees": "stop"},
    {"agrees": ["stop"] * 100},
    {"agrees": ["x" * 100]},
    {"collective": "yes"},
    {"revision": -1},
)


async def _answers(rank: ProcessPeer, answer: str) -> dict[str, Any]:
    """Waits for the line that asks for this answer, gives it, and returns the line."""
    while True:
        line = await rank.lines.matching(type="directive")
        if (agreement := line["agreement"]) is not None:
            is_poll, is_committed = agreement["step"] is None, agreement["committed"]
            if answer == ("declined" if is_poll else "committed" if is_committed else "accepted"):
                break
    step = 100 if agreement["step"] is None else agreement["step"] - 1
    fields = {"epoch": agreement["epoch"], "purpose": agreement["purpose"], "at_step": agreement["step"], "step": step}
    # So slow that this process is never late.
    fields |= {"answer": answer, "step_seconds": 10.0, "unread_seconds": 0.0}
    assert await rank.reports("agreement", line, **fields) == PeerRefusal(200, None)
    return line


async def test_all_ranks_stop_and_save_at_one_step(served: Served) -> None:
    """Polled, proposed, committed to all, and suspended after every rank has saved; the status names who is late."""
    agents = await served.peers.agents(NODES)
    _, order = await served.peers.running("job", NODES)
    ranks = [await served.peers.process(order["token"], node, rank, **AGREES) for rank, node in enumerate(NODES)]
    await agents["n3"].notices("n3")
    for rank in ranks[:2]:
        await _answers(rank, "declined")

    async def waits() -> bool:
        (shown,) = (await served.status())["jobs"]
        return (shown["agreement"] or {}).get("waits_for") == "rank 2"

    await until(waits, "the status names the rank")
    await _answers(ranks[2], "declined")
    for rank in ranks:
        await _answers(rank, "accepted")
    lines = [await _answers(rank, "committed") for rank in ranks]
    (step,) = {line["agreement"]["step"] for line in lines if line["directive"] == "STOP"}
    for rank, line in zip(ranks, lines, strict=True):
        assert served.job("job").decision.phase is Phase.STOPPING
        assert await rank.reports("saved", line, step=step) == PeerRefusal(200, None)
    await until(lambda: served.job("job").decision.phase is Phase.SUSPENDED)
    assert served.job("job").decision.reason.endswith(f"All ranks have saved a checkpoint of step {step}.")


async def test_a_malformed_answer_is_refused(served: Served) -> None:
    """And changes nothing; the stream stays as it was."""
    await served.peers.agent("n1")
    _, order = await served.peers.running("job", ["n1"])
    peer = await served.peers.process(order["token"], "n1", 0, **AGREES)
    line = await peer.lines.any()
    good = {"epoch": 1, "purpose": "stop", "at_step": None, "answer": "declined", "step": 7}
    for changes in MALFORMED:
        refusal = await peer.reports("agreement", line, **{**good, **changes})
        assert refusal == PeerRefusal(400, "malformed"), changes
    assert await peer.reports("agreement", line, **good) == PeerRefusal(200, None)


async def test_what_later_versions_say_is_left_out(served: Served) -> None:
    """A purpose that is not known yet, and an answer of a rank that does not know its step."""
    await served.peers.agent("n1")
    _, order = await served.peers.running("job", ["n1"])
    says = {"agrees": ["stop", "migrate"], "agreement": {"epoch": 3, "purpose": "migrate", "step": 5, "later": 1}}
    peer = await served.peers.process(order["token"], "n1", 0, **says)
    line = await peer.lines.any()
    answer = {"epoch": 1, "purpose": "stop", "at_step": None, "answer": "declined", "step": None}
    assert await peer.reports("agreement", line, **answer, agreement=None) == PeerRefusal(200, None)
    assert await peer.reports("resumed", line, step=40) == PeerRefusal(200, None)
