"""Relays: one stream for the processes of a pod or machine, and their messages in batches."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from supervisor.identity.tokens import ProcessPrincipal
from supervisor.ingest.processes import PostedProcessReport, ProcessEndpoints
from tests.testkit.serving import AgentPeer, Lines, PeerRefusal, Served
from tests.testkit.waiting import until

STREAM = "/v1/relays/stream"
MESSAGES = "/v1/relays/messages"
HOSTS = ["n1", "n2", "n3"]


def hello(name: str, rank: int | None = None, host: str = "n1") -> dict[str, Any]:
    return {"hello": {"process": name, "host": host, "rank": rank, "pid": 1, "step": None, "sdk": "0"}}


def report(name: str, rank: int | None, generation: int, kind: str = "left") -> dict[str, Any]:
    who = {"process": name, "host": "n1", "rank": rank, "step": 7, "run": 1}
    return {"report": {**who, "generation": generation, "kind": kind}}


@dataclass(frozen=True, slots=True)
class RelayPeer:
    """A relay with an open stream."""

    served: Served
    token: str
    name: str
    lines: Lines
    agents: Mapping[str, AgentPeer]

    async def says(self, *messages: Any) -> list[Mapping[str, Any]]:
        """The answers to the messages of a batch, each without its sentence."""
        body = json.dumps({"relay": self.name, "messages": messages}).encode()
        headers = {"Authorization": f"Bearer {self.token}"}
        peers = self.served.peers
        async with peers.session.post(peers.http + MESSAGES, headers=headers, data=body) as answer:
            assert answer.status == 200, await answer.text()
            answers = (await answer.json())["answers"]
        assert all(each["message"] for each in answers if each)
        return [{key: value for key, value in each.items() if key != "message"} for each in answers]

    async def hears(self, process: str, **fields: Any) -> tuple[list[str], Mapping[str, Any]]:
        """The next line for a process with these fields, and everybody whom it is for."""
        while True:
            said = await self.lines.matching(type="relayed")
            if process in said["processes"] and fields.items() <= said["line"].items():
                return sorted(said["processes"]), said["line"]


@pytest.fixture
async def relay(served: Served) -> RelayPeer:
    """A relay of a job that runs on three hosts and needs all."""
    agents = await served.peers.agents(HOSTS)
    _, order = await served.peers.running("job", HOSTS)
    lines = await served.peers.lines(STREAM, order["token"], {"relay": "relay"})
    return RelayPeer(served, order["token"], "relay", lines, agents)


async def connected(served: Served) -> set[str]:
    """The hosts of the job from which a process is connected."""
    [job] = (await served.status())["jobs"]
    return {host["host"] for host in job["host_states"] if host["stream"]}


def on(*hosts: str) -> list[dict[str, Any]]:
    """Hellos of a process on each host."""
    return [hello(f"process-on-{host}", rank, host) for rank, host in enumerate(hosts)]


async def test_a_directive_is_sent_once_to_all_that_it_is_for(relay: RelayPeer) -> None:
    """Rank 0 is told to stop, the others of the same stream go on, with the same notice."""
    assert await relay.says(*(hello(f"p{rank}", rank) for rank in range(8))) == [{}] * 8
    names, line = await relay.hears("p0")
    assert names == [f"p{rank}" for rank in range(8)]
    assert (line["type"], line["directive"]) == ("directive", "RUN")
    await relay.agents["n2"].notices("n2")
    assert (await relay.hears("p0", directive="STOP"))[0] == ["p0"]
    assert (await relay.hears("p1", directive="RUN"))[0] == [f"p{rank}" for rank in range(1, 8)]


async def test_an_answer_in_a_batch_counts_as_that_of_its_process(served: Served, relay: RelayPeer) -> None:
    assert await relay.says(hello("p0", 0), hello("p1", 1)) == [{}, {}]
    await relay.agents["n2"].notices("n2")
    _, stop = await relay.hears("p0", directive="STOP")
    assert await relay.says(report("p1", 1, stop["generation"])) == [{}]
    assert served.job("job").observed.acknowledgement is None
    assert await relay.says(report("p0", 0, stop["generation"])) == [{}]
    assert served.job("job").observed.acknowledgement is not None


async def test_each_message_is_refused_for_itself(served: Served, relay: RelayPeer) -> None:
    malformed = {"status": 400, "error": "malformed"}
    bad: list[Any] = [None, {}, hello("p\n"), {**hello("p"), "gone": "p"}, report("p", -1, 1)]
    first, last = on("n1", "n2")
    answers = await relay.says(first, *bad, hello("p", host="n" * 20_000), last)
    assert answers == [{}, *[malformed] * len(bad), {"status": 413, "error": "oversized"}, {}]
    assert await connected(served) == {"n1", "n2"}


async def test_processes_that_left_are_gone_and_all_are_when_the_stream_ends(served: Served, relay: RelayPeer) -> None:
    """To say it again, or of somebody unknown, changes nothing."""
    assert await relay.says(*on(*HOSTS)) == [{}] * 3
    assert await relay.says({"gone": "process-on-n1"}, {"gone": "process-on-n1"}, {"gone": "nobody"}) == [{}] * 3
    assert await connected(served) == {"n2", "n3"}
    relay.lines.close()
    await until(lambda: none_connected(served))


async def none_connected(served: Served) -> bool:
    return not await connected(served)


async def test_a_process_that_opens_a_stream_of_its_own_keeps_it(served: Served, relay: RelayPeer) -> None:
    """The relay's part of it ends with a goodbye; what the relay says of it later changes nothing."""
    assert await relay.says(*on("n1", "n2")) == [{}, {}]
    own = await served.peers.process(relay.token, "n1", 0)
    await own.lines.any()
    assert (await relay.hears("process-on-n1", type="goodbye"))[0] == ["process-on-n1"]
    assert await relay.says({"gone": "process-on-n1"}) == [{}]
    assert await connected(served) == {"n1", "n2"}


async def test_a_hello_that_a_relay_passes_on_late_takes_no_stream_away(served: Served, relay: RelayPeer) -> None:
    """Its process has given the relay up; the next hello of the process counts again, through the relay or not."""
    own = await served.peers.process(relay.token, "n1", 0, attempt=2)
    [late] = on("n1")
    late["hello"]["attempt"] = 1
    assert await relay.says(late) == [{}]
    assert (await relay.hears("process-on-n1", type="goodbye"))[1]["reason"] == "a newer stream of this process is open"
    assert await relay.says({"gone": "process-on-n1"}) == [{}]
    assert await connected(served) == {"n1"}
    await relay.agents["n2"].notices("n2")
    assert await own.lines.matching(type="directive", directive="STOP")
    late["hello"]["attempt"] = 3
    assert await relay.says(late) == [{}]
    assert await own.lines.matching(type="goodbye", reason="replaced by a newer stream")
    assert (await relay.hears("process-on-n1", type="directive"))[1]["directive"] == "STOP"


async def test_a_process_that_joins_again_is_told_again(relay: RelayPeer) -> None:
    """Also in the same batch in which it left."""
    assert await relay.says(hello("p", 0)) == [{}]
    await relay.hears("p", directive="RUN")
    assert await relay.says({"gone": "p"}, hello("p", 1)) == [{}, {}]
    await relay.hears("p", directive="RUN")


async def test_a_shared_stream_has_one_heartbeat_and_one_goodbye(served: Served, relay: RelayPeer) -> None:
    """They are the stream's, not each process's."""
    assert await relay.says(*on(*HOSTS)) == [{}] * 3
    await relay.hears("process-on-n1")
    await relay.lines.before_heartbeat()
    assert await relay.lines.before_heartbeat() == []
    await served.stop()
    assert (await relay.lines.next())["type"] == "goodbye"
    assert await relay.lines.any() == {}


async def test_only_the_relays_own_job_may_use_its_stream(served: Served, relay: RelayPeer) -> None:
    """The processes of another job would hear what is not for them."""
    await served.peers.agent("n4")
    _, order = await served.peers.running("other", ["n4"])
    unknown = PeerRefusal(404, "unknown_relay")
    batch = {"relay": "relay", "messages": [hello("p")]}
    assert await served.peers.post(MESSAGES, order["token"], batch) == unknown
    assert await served.peers.post(MESSAGES, relay.token, {**batch, "relay": "another"}) == unknown
    assert await served.peers.post(STREAM, relay.token, {"relay": "relay"}) == PeerRefusal(429, "too_many")
    many = {**batch, "messages": [hello("p")] * 65}
    assert await served.peers.post(MESSAGES, relay.token, many) == PeerRefusal(400, "malformed")


async def test_the_processes_of_a_job_are_bounded(relay: RelayPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.fanout.processes.MAX_STREAMS", 2)
    assert await relay.says(*on(*HOSTS)) == [{}, {}, {"status": 429, "error": "too_many"}]


async def test_the_relay_of_an_earlier_job_of_the_name_is_not_that_of_the_new_one(
    served: Served, relay: RelayPeer
) -> None:
    """Its processes are told goodbye and may not come back; the new job may have a relay of the same id."""
    assert await relay.says(hello("p0", 0)) == [{}]
    launcher = await served.peers.launcher("job", HOSTS)
    launcher.report["revision"] = served.job("job").observed.revision
    await launcher.reports(run=1, result="succeeded")
    _, order = await served.peers.running("job", HOSTS, instance="instance-2")
    assert (await relay.hears("p0", type="goodbye"))[0] == ["p0"]
    unknown = {"status": 404, "error": "unknown_job"}
    assert await relay.says(hello("p0", 0), report("p0", 0, 1)) == [unknown, unknown]
    lines = await served.peers.lines(STREAM, order["token"], {"relay": "relay"})
    second = RelayPeer(served, order["token"], "relay", lines, relay.agents)
    assert await second.says(hello("p0", 0)) == [{}]
    assert (await second.hears("p0"))[1]["type"] == "directive"
    relay.lines.close()
    assert await second.says(hello("p1", 1)) == [{}]


async def test_a_fault_in_one_message_of_a_batch_is_answered_to_its_process_alone(
    relay: RelayPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay must not repeat the messages of the others, which were handled."""
    accept = ProcessEndpoints.accept

    async def raises(endpoints: ProcessEndpoints, principal: ProcessPrincipal, sent: PostedProcessReport) -> None:
        if sent.process == "p0":
            raise RuntimeError("a fault of the supervisor")
        await accept(endpoints, principal, sent)

    monkeypatch.setattr(ProcessEndpoints, "accept", raises)
    assert await relay.says(hello("p0", 0), hello("p1", 1)) == [{}, {}]
    assert await relay.says(report("p0", 0, 0), report("p1", 1, 0)) == [{"status": 500, "error": "internal"}, {}]
