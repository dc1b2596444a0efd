from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.kind_support import SHOWS, shown
from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.binaries import BinaryProgram, NoGo, binaries
from tests.testkit.controlplane.installed import InstalledPlace, api_server, empty, place
from tests.testkit.controlplane.namespace import Namespace, fresh_namespace
from tests.testkit.controlplane.order import dealt
from tests.testkit.controlplane.running import ControlPlane, RunningCluster, running
from tests.testkit.controlplane.shared import shared


@pytest.fixture(scope="session")
def programs() -> Mapping[BinaryProgram, Path]:
    """The programs of a control plane. Without Go the test is skipped; with Go it fails if nobody has built them."""
    try:
        return binaries()
    except NoGo as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def cluster(
    programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    """The control plane that all tests of this run share, in all of its processes."""
    assert programs
    base = tmp_path_factory.getbasetemp()
    with shared(base.parent if base.name.startswith("popen-") else base) as present:
        yield present


@pytest.fixture
async def api(cluster: RunningCluster) -> AsyncIterator[Api]:
    """A client of the shared control plane that may do everything."""
    async with client(cluster) as administrator:
        yield administrator


@pytest.fixture
async def namespace(cluster: RunningCluster, api: Api) -> AsyncIterator[Namespace]:
    async with fresh_namespace(cluster, api) as own:
        yield own


@pytest.fixture(scope="session")
def api_plane(
    programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """An API server for all tests of one process that need no more of a control plane: one at a time has it alone."""
    with api_server(programs, tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
async def here(api_plane: ControlPlane) -> AsyncIterator[InstalledPlace]:
    """An API server without objects of other tests. A test may stop and restart it."""
    if not api_plane.runs(BinaryProgram.API_SERVER):
        api_plane.launch(BinaryProgram.API_SERVER)
        api_plane.wait_ready(BinaryProgram.API_SERVER)
    async with place(api_plane) as own:
        await empty(own.api)
        yield own


@pytest.fixture(scope="session")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane for tests whose supervisor sees the whole cluster. The tests of one process use it one at a time.

    Its pods run until somebody ends them. Nobody stops its programs, as some operators end when the API server is away.
    """
    stages = {BinaryProgram.KWOK: {"config": Path(__file__).with_name("pod_stages.yaml")}}
    with running(programs, tmp_path_factory.mktemp("plane"), stages) as present:
        yield present


@pytest.fixture
def own_controlplane(programs: Mapping[BinaryProgram, Path], tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane for one test, which stops programs of it or installs CRDs that no other test may see."""
    with running(programs, tmp_path / "controlplane") as plane:
        yield plane


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A long test that begins last is what everybody would wait for."""
    long = [each for each in items if each.get_closest_marker("long")]
    others = [each for each in items if not each.get_closest_marker("long")]
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = dealt(long, others, processes, lambda each: each.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the logs with a test that has failed."""
    report = yield
    if report.failed:
        for used in _clusters(getattr(item, "funcargs", {})):
            report.sections.append((f"control plane in {used.directory}", used.last_words()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the run has shown of each kind of job."""
    outcomes: dict[tuple[str, str], str] = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            # A module that cannot be collected has none.
            properties = getattr(report, "user_properties", ())
            outcomes.update({tuple(value): outcome for name, value in properties if name == SHOWS})
    if outcomes:
        terminalreporter.section("kinds of jobs")
        for line in shown(outcomes):
            terminalreporter.line(line)


def _clusters(used: Mapping[str, Any]) -> Iterator[RunningCluster]:
    for value in used.values():
        if isinstance(value, RunningCluster):
            yield value
        elif isinstance(value, ControlPlane):
            yield value.cluster
