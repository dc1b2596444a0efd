from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from tests.fleet.fleet_world import Fleet, FleetTeam, customization, fleet, team
from tests.testkit.controlplane.binaries import NoGo, binaries, hub


@pytest.fixture(scope="session")
def present(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A hub with two members, which all tests share.

    Without Go the tests are skipped; with Go they fail if nobody has built the programs.
    """
    try:
        programs, of_hub = binaries(), hub()
    except NoGo as reason:
        pytest.skip(str(reason))
    with fleet(programs, of_hub, tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture
async def jobs(present: Fleet) -> AsyncIterator[FleetTeam]:
    """The PyTorchJobs of the test's own namespace, at the hub and in its members."""
    async with team(present) as own:
        yield own


@pytest.fixture
async def customized(jobs: FleetTeam) -> AsyncIterator[FleetTeam]:
    """The same, with the chart's customization of PyTorchJobs at the hub."""
    async with customization(jobs.api):
        yield jobs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the logs with a test that has failed."""
    report = yield
    used = getattr(item, "funcargs", {}).get("present")
    if report.failed and isinstance(used, Fleet):
        for cluster in (used.hub.cluster, *(member.cluster for member in used.members.values())):
            report.sections.append((f"control plane in {cluster.directory}", cluster.last_words()))
    return report
