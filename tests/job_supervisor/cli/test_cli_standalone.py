"""`job-supervisor` beside a supervisor that serves: what people see of their jobs."""

import json
from pathlib import Path

import msgspec
import pytest
from reclaim.v1 import reclaim_pb2 as wire

from simulator.status import fetch
from tests.job_supervisor.cli.cli_running import interrupt, line, run, run_process, started
from tests.testkit.serving import AgentPeer, Served
from tests.testkit.waiting import until


async def test_status_lists_jobs_notices_and_agents(served: Served, tmp_path: Path) -> None:
    """Readable without colours, each on its line, and what is silent by name."""
    agents = await served.peers.agents(["n1", "n2", "n3"])
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    await agents["n3"].notices("n3", left=300.0)
    await agents["n3"].say(goodbye={"reason": "over"})
    await served.agent_is("n3", connected=False)
    said = await run("status", "--data-dir", tmp_path)
    assert (said.code, said.err) == (0, "")
    jobs, notices, agents_line = said.out.split("\n\n")
    assert jobs.splitlines()[0].split() == ["JOB", "PHASE", "RUN", "WORKERS", "EXCLUDED", "AGE", "REASON"]
    assert jobs.splitlines()[1].split()[:5] == ["resnet", "Running", "1", "2", "0"]
    (notice,) = notices.splitlines()[1:]
    assert notice.split()[0] == "node/n3"
    assert "metadata" in notice
    assert agents_line == "2 agents are connected; unknown: n3.\n"
    assert "\x1b" not in said.out


async def test_status_where_there_is_nothing_says_so(served: Served, tmp_path: Path) -> None:  # noqa: ARG001
    said = await run("status", "--data-dir", tmp_path)
    assert said.out.splitlines()[0] == "No jobs."
    assert said.out.splitlines()[2] == "No reclaim notices."


async def test_status_for_programs(served: Served, tmp_path: Path) -> None:
    await served.peers.agent("n1", machine=wire.Machine(price_class=wire.PRICE_CLASS_SPOT))
    await served.peers.running("resnet", ["n1"])
    said = await run("status", "--data-dir", tmp_path, "--output", "json")
    assert said.out.count("\n") == 1
    (job,) = said.json["jobs"]
    assert (job["job"], job["phase"], job["workers"]) == ("resnet", "Running", ["n1"])
    (agent,) = said.json["agents"]
    assert (agent["node"], agent["connected"], agent["silent_seconds"]) == ("n1", True, None)
    assert agent["sources"] == [{"source": "metadata", "state": "clear"}]
    assert agent["machine"]["price_class"] == "spot"


async def test_a_job_that_is_on_several_pages_is_one_job(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.observability.status_view.MAX_ENTRIES", 2)
    nodes = [f"n{number}" for number in range(5)]
    agents = await served.peers.agents(nodes)
    await served.peers.running("resnet", nodes, min_workers=1)
    await agents["n4"].notices("n4", left=300.0)
    said = await run("status", "--data-dir", tmp_path, "--output", "json")
    (job,) = said.json["jobs"]
    assert job["workers"] + job["exclusions"] == nodes
    assert [state["host"] for state in job["host_states"]] == nodes
    assert [agent["node"] for agent in said.json["agents"]] == nodes
    assert [notice["subject"] for notice in said.json["notices"]] == ["n4"]
    assert "next" not in said.json
    seen = await fetch(served.peers.session, served.peers.http, served.peers.tokens.viewer())
    (simulated,) = seen.jobs
    assert (simulated.hosts, simulated.workers + simulated.exclusions) == (nodes, nodes)
    assert seen.connected() == frozenset(nodes)


async def test_status_goes_on_watching_until_it_is_interrupted(tmp_path: Path, served: Served) -> None:
    """Each look is another one; Ctrl-C is how it ends, and no failure."""
    await served.peers.agents(["n1"])
    async with started("status", "--data-dir", tmp_path, "--live", "--interval", "0.1") as command:
        await line(command, "No jobs.")
        await served.peers.running("resnet", ["n1"])
        assert "resnet" in await line(command, "Running")  # a look in between may have seen it wait
        interrupt(command)
        await command.communicate()
        assert command.returncode == 0


async def test_explain_says_where_a_job_stands_and_why(served: Served, tmp_path: Path) -> None:
    """Its phase, the reason, who is noticed by whom and until when, what comes next, and who is not covered."""
    agents = await served.peers.agents(["n1", "n2", "n3"])
    launcher, order = await served.peers.running("resnet", ["n1", "n2", "n3"], min_workers=1)
    await served.peers.process(order["token"], "n1", 0)
    await agents["n2"].notices("n2", left=300.0)
    excluding = await launcher.lines.matching(exclusions=["n2"])
    await launcher.reports(applied=excluding["generation"])
    await until(lambda: served.job("resnet").decision.phase == "Running")
    said = await run("explain", "resnet", "--data-dir", tmp_path)
    assert said.code == 0, said.err
    text = said.out
    assert text.startswith("resnet is Running for ")
    assert "Run 1 is running on 2 hosts (excluded: n2). The job asks for 1 to 3 hosts." in text
    assert "1 of its hosts has a notice:\n  n2 will be gone in " in text
    assert ", says metadata." in text
    assert "Next:\n  Excluded hosts return if their notices are withdrawn." in text
    assert "Not covered:\n  No process on n3 has a stream" in text
    assert "No agent" not in text


async def test_explain_says_what_a_waiting_job_waits_for(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(["n1"])
    await served.peers.launcher("resnet", ["n1", "n2"], max_wait_seconds=3600)
    said = await run("explain", "resnet", "--data-dir", tmp_path)
    assert "resnet is Waiting" in said.out
    sentence = "1 of 2 listed hosts can be used, and 2 are needed. n2: no agent is connected."
    assert f"Waits for: {sentence}\n  n2  no agent is connected\n" in said.out
    assert sentence in (await run("status", "--data-dir", tmp_path)).out
    program = (await run("explain", "resnet", "--data-dir", tmp_path, "-o", "json")).json["job"]
    assert program["missing_hosts"] == [{"host": "n2", "lack": "no_agent", "why": "no agent is connected"}]
    assert (
        "It starts when at least 2 of its hosts are connected without a notice and not used by another job." in said.out
    )
    assert "In 1 h: it times out and is not started again" in said.out or "In 59 min" in said.out


async def test_explain_says_what_a_suspended_job_waits_for(served: Served, tmp_path: Path) -> None:
    """Its hosts are not its own any more, and their notices keep it from resuming; why it was stopped is the past."""
    agents = await served.peers.agents(["n1", "n2", "n3"])
    launcher, order = await served.peers.running("resnet", ["n1", "n2"])
    process = await served.peers.process(order["token"], "n1", 0)
    await agents["n2"].notices("n2", left=300.0)
    stop = await process.lines.matching(type="directive", directive="STOP")
    await process.reports("saved", stop, step=7)
    waits = await launcher.lines.matching(order="wait")
    await launcher.reports(applied=waits["generation"], running=False, exit_code=0)
    await until(lambda: not served.job("resnet").decision.hosts)
    said = await run("explain", "resnet", "--data-dir", tmp_path)
    text = said.out
    assert "  Last decision: n2 will be reclaimed, says metadata; 1 host would remain (minimum 2)" in text
    assert "\n  n2  noticed by metadata\n" in text
    assert "1 of its hosts has a notice:\n  n2 will be gone in " in text
    assert "Next:\n  It resumes when at least 2 of its hosts are connected without a notice" in text
    job = (await run("status", "--data-dir", tmp_path)).out.splitlines()[1]
    assert "1 of 2 listed hosts can be used, and 2 are needed. n2: noticed by metadata." in job


async def test_explain_for_programs(served: Served, tmp_path: Path) -> None:
    agents = await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    await agents["n2"].notices("n2", left=300.0)
    said = await run("explain", "resnet", "--data-dir", tmp_path, "--output", "json")
    assert [notice["id"] for notice in said.json["notices"]] == ["metadata/n2/uid-n2"]
    hosts = {host["host"]: host for host in said.json["job"]["host_states"]}
    assert hosts["n1"]["agent"] is True
    assert hosts["n2"]["notice"] == "metadata/n2/uid-n2"


async def test_it_finds_the_supervisor_by_itself(served: Served, tmp_path: Path) -> None:
    """By the supervisor's own environment, by its default directory, or by an address and a token."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "job-supervisor-data").symlink_to(tmp_path)
    token = tmp_path / "viewer.token"
    token.write_text(served.peers.tokens.viewer())
    ways = [
        await run("status", JOB_SUPERVISOR_DATA_DIR=str(tmp_path)),
        await run_process("status", cwd=home),
        await run("status", "--address", served.peers.http, "--token-file", token),
        await run("status", SUPERVISOR_CLI_ADDRESS=served.peers.http, SUPERVISOR_CLI_TOKEN_FILE=str(token)),
    ]
    assert [(said.code, said.err) for said in ways] == [(0, "")] * len(ways)


async def test_in_the_pod_of_a_clusters_supervisor_it_asks_the_cluster(served: Served, tmp_path: Path) -> None:  # noqa: ARG001
    """Whose data directory is there, and holds nothing of the jobs; an option that is typed still counts for more."""
    store = "kubernetes"
    asked = await run("status", JOB_SUPERVISOR_DATA_DIR=str(tmp_path), JOB_SUPERVISOR_STORE=store)
    assert (asked.code, "no cluster to connect to" in asked.err) == (64, True)
    assert (await run("status", "--data-dir", tmp_path, JOB_SUPERVISOR_STORE=store)).code == 0


async def test_a_watch_is_a_line_for_each_change(served: Served, tmp_path: Path) -> None:
    """And a JSON object for programs."""
    agents = await served.peers.agents(["n1", "n2"])
    people = started("status", "--data-dir", tmp_path, "--watch", "--interval", "0.1")
    programs = started("status", "--data-dir", tmp_path, "--watch", "--interval", "0.1", "-o", "json")
    async with people as command, programs as other:
        await line(command, "No jobs and no reclaim notices yet.", command.stderr)
        await agents["n2"].notices("n2", left=300.0)
        assert "node/n2  noticed: Will be gone in " in await line(command, "n2")
        event = json.loads(await line(other, "node/n2"))
        assert (event["subject"], event["what"]) == ("node/n2", "noticed")
        await served.peers.running("resnet", ["n1"])
        assert "job/resnet  Running: " in await line(command, "Running")
        for each in (command, other):
            interrupt(each)
            await each.communicate()
            assert each.returncode == 0


async def test_nodes_shows_what_each_agents_sources_answer(served: Served, tmp_path: Path) -> None:
    agents = await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    await agents["n2"].notices("n2", left=300.0)
    said = await run("nodes", "--data-dir", tmp_path)
    rows = [row.split() for row in said.out.splitlines()]
    assert rows[0] == ["NODE", "AGENT", "SILENT", "SOURCES", "NOTICE", "JOBS"]
    assert rows[1] == ["n1", "connected", "-", "metadata=clear", "-", "resnet"]
    assert rows[2][:2] == ["n2", "connected"]
    assert rows[2][-2:] == ["metadata", "resnet"]
    assert (await run("nodes", "--data-dir", tmp_path, "-o", "name")).out == "node/n1\nnode/n2\n"


async def test_history_tells_every_drain_of_a_node_and_causes_before_effects(served: Served, tmp_path: Path) -> None:
    """Of a node that is drained twice, the supervisor stores the second drain alone."""
    await served.peers.agents(["n1", "n2"])
    launcher, _ = await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    token = served.peers.tokens.operator("ann")
    for _ in range(2):
        await served.peers.post("/v1/drains", token, {"node": "n2", "lead_seconds": 60})
        excluding = await launcher.lines.matching(exclusions=["n2"])
        await launcher.reports(applied=excluding["generation"])
        await until(lambda: served.job("resnet").decision.phase == "Running")
        await served.peers.post("/v1/drains/end", token, {"node": "n2"})
        await launcher.lines.matching(exclusions=[])
    said = await run("history", "resnet", "--data-dir", tmp_path, "-o", "json")
    told = [(entry["subject"], entry["what"], entry["text"].partition(";")[0]) for entry in said.json["entries"]]
    drained = ("node/n2", "noticed")
    ended = ("node/n2", "withdrawn", "Node n2 is not drained any more.")
    assert [entry[:2] for entry in told].count(drained) == 2
    assert told.count(ended) == 2
    effects = [at for at, entry in enumerate(told) if entry[2] == "n2 has no notice any more"]
    assert effects == [at + 1 for at, entry in enumerate(told) if entry == ended]
    assert ("job/resnet", "Shrinking", "n2 is drained by ann") in told
    assert "reclaimed" not in said.out


async def test_history_tells_a_notice_and_the_decision_about_it(served: Served, tmp_path: Path) -> None:
    agents = await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    await agents["n2"].notices("n2", left=300.0)

    async def told(*filters: str) -> str:
        said = await run("history", *filters, "--data-dir", tmp_path)
        assert said.code == 0, said.err
        return said.out

    async def shrunk() -> str:
        out = await told("resnet")
        return out if "Shrinking" in out else ""

    out = await until(shrunk, "the record has the decision")
    whats = [row.split()[2:4] for row in out.split("\n\n")[0].splitlines()[1:]]
    assert whats[0] == ["job/resnet", "Waiting"]
    assert ["job/resnet", "Run"] in whats
    assert whats.index(["node/n2", "noticed"]) < whats.index(["job/resnet", "Shrinking"]) == len(whats) - 1
    assert "The record begins " in out
    about_node = [row.split()[2:4] for row in (await told("--node", "n2")).split("\n\n")[0].splitlines()[1:]]
    assert about_node[0] == ["node/n2", "noticed"]
    assert about_node[-1] == ["job/resnet", "Shrinking"]
    assert "job/" not in await told("--source", "metadata", "--since", "1d", "--no-drills")
    assert "Here the earliest are left out" in await told("--limit", "1")
    unknown = await run("history", "nobody", "--data-dir", tmp_path)
    assert unknown.code == 66


async def test_the_history_of_a_pool_and_of_a_file(served: Served, tmp_path: Path) -> None:
    """A file that was exported answers as the record does, when nothing of the supervisor is left."""
    agents = list[AgentPeer]()
    for node, kind in (("n1", "big"), ("n2", "big"), ("n3", "small")):
        machine = wire.Machine(cloud="aliyun", zone="h", instance_type=kind)
        agents.append(await served.peers.agent(node, machine=machine))
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    await agents[1].notices("n2", left=300.0)
    await agents[2].notices("n3", left=300.0)
    source = "--data-dir", str(tmp_path)

    async def told(*filters: str) -> list[tuple[str, str]]:
        said = await run("history", *filters, *source, "-o", "json")
        assert said.code == 0, said.err
        return [(entry["subject"], entry["what"]) for entry in said.json["entries"]]

    async def has_noticed_both() -> bool:
        everything = await told()
        return {("node/n2", "noticed"), ("node/n3", "noticed"), ("job/resnet", "Shrinking")} <= set(everything)

    await until(has_noticed_both, "the record has both notices")
    exported = tmp_path / "history.json"
    exported.write_text((await run("history", *source, "-o", "json")).out)
    questions = (
        ("--pool", "aliyun/h/big"),
        ("--pool", "aliyun/h/medium"),
        ("--pool", "%61liyun/h/big"),
        ("--node", "n3"),
        ("resnet",),
        ("--since", "1d"),
    )
    answers = [await told(*question) for question in questions]
    assert {subject for subject, _ in answers[0]} <= {"node/n2", "job/resnet"}
    assert ("node/n2", "noticed") in answers[0]
    assert answers[1] == []
    assert answers[2] == answers[0]
    source = "--from", str(exported)
    assert [await told(*question) for question in questions] == answers
    assert "node/n2" in (await run("history", *source, "--no-drills")).out


@pytest.mark.parametrize(("text", "code"), [(None, 66), ("{}", 64), ("[" * 10_000, 64), ('{"entries": [1]}', 64)])
async def test_a_file_that_is_no_history_is_refused(tmp_path: Path, text: str | None, code: int) -> None:
    file = tmp_path / "history.json"
    if text is not None:
        file.write_text(text)
    said = await run("history", "--from", file)
    assert (said.code, str(file) in said.err) == (code, True)


async def test_status_in_the_forms_that_programs_read(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(["n1"])
    await served.peers.running("resnet", ["n1"])

    async def said(form: str) -> str:
        outcome = await run("status", "--data-dir", tmp_path, "-o", form)
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.out

    assert await said("name") == "job/resnet\n"
    assert await said(r'jsonpath={range .jobs[*]}{.job} {.phase}{"\n"}{end}') == "resnet Running\n"
    assert msgspec.yaml.decode(await said("yaml"))["jobs"][0]["job"] == "resnet"
    assert "REQUESTED" in await said("wide")


async def test_what_only_a_cluster_has_is_refused(served: Served, tmp_path: Path) -> None:  # noqa: ARG001
    labels = await run("status", "--data-dir", tmp_path, "-l", "team=vision")
    assert labels.code == 64
    assert "labels are those of a cluster's objects" in labels.err
    template = await run("status", "--data-dir", tmp_path, "-o", "jsonpath={.jobs")
    assert (template.code, "a brace is not closed" in template.err) == (64, True)
