"""A whole simulated world with two supervisors on the same ports, as behind one Service."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from simulator.cloud.process import CloudChild, environment, script, spawn
from simulator.harness import ReplayWorld, ServiceSettings, world
from tests.chaos.chaos_world import NODES
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.waiting import until


def settings(here: InstalledPlace) -> Mapping[str, str]:
    return {"JOB_SUPERVISOR_STORE": "kubernetes", "KUBECONFIG": str(here.kubeconfig)}


@asynccontextmanager
async def two_supervisors(
    here: InstalledPlace, root: Path, given: ServiceSettings
) -> AsyncIterator[tuple[ReplayWorld, CloudChild]]:
    """A world, and the supervisor that stands by in it: it opens the ports of the first one once that is gone."""
    given = ServiceSettings({**given.supervisor, **settings(here)}, given.agents)
    async with world(root, [str(node) for node in NODES], settings=given) as one:
        standby = _stand_by(one, given)
        try:
            await until(lambda: "supervisor.standing_by" in standby.log.read_text(encoding="utf-8"))
            yield one, standby
        finally:
            if standby.running:
                await standby.stop()


def _stand_by(one: ReplayWorld, given: ServiceSettings) -> CloudChild:
    serves = one.supervisor.endpoints
    variables = {
        **given.supervisor,
        "JOB_SUPERVISOR_DATA_DIR": str(one.paths.supervisor),
        "JOB_SUPERVISOR_GRPC_ADDRESS": serves.grpc,
        "JOB_SUPERVISOR_HTTP_ADDRESS": serves.http.partition("://")[2],
        "JOB_SUPERVISOR_FAILPOINT": "",
    }
    env = environment(one.paths.root, variables)
    return spawn("standby", [script("elastic-job-supervisor"), "serve"], env, one.paths.log("standby"))
