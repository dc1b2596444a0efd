from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from servicekit.kubernetes.errors import ApiUnavailableError, NotFoundError
from servicekit.kubernetes.execute import ExecResult, execute
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until


@pytest.fixture
async def server(cluster: RunningCluster) -> AsyncIterator[ApiServer]:
    one = await ApiServer.connect(str(cluster.kubeconfig), 10.0)
    yield one
    await one.close()


@pytest.fixture
async def pod(namespace: Namespace, server: ApiServer, tmp_path: Path) -> ObjectKey:
    """A pod whose commands run here, with a directory of its own."""
    await namespace.node()
    await namespace.pod("launcher")
    await namespace.running("launcher")
    await namespace.runs_commands("launcher", EDL=str(tmp_path))
    key = ObjectKey(namespace.name, "launcher")

    async def answers() -> bool:
        try:
            return (await execute(server, key, "main", ["true"])).code == 0
        except ApiUnavailableError:
            return False

    await until(answers, "kwok knows the pod's commands")
    return key


async def test_a_command_runs_with_what_the_pod_has(server: ApiServer, pod: ObjectKey, tmp_path: Path) -> None:
    """Through the real API server, with the pod's own variables; both outputs come back."""
    script = 'echo $EDL; echo wrong >&2; echo kept > "$EDL/file"'
    ran = await execute(server, pod, "main", ["sh", "-c", script])
    assert ran.code == 0
    assert sorted(ran.output.split()) == sorted([str(tmp_path), "wrong"])
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept\n"


async def test_a_command_that_says_nothing_has_ended_well(server: ApiServer, pod: ObjectKey) -> None:
    """Code 0, nothing said."""
    assert await execute(server, pod, "main", ["true"]) == ExecResult(0, "")


async def test_a_command_in_a_pod_that_is_not_there_is_told_apart(server: ApiServer, namespace: Namespace) -> None:
    with pytest.raises(NotFoundError):
        await execute(server, ObjectKey(namespace.name, "nobody"), "main", ["true"])


@pytest.mark.parametrize("command", [["/nothing/of/that/name"], ["false"]])
async def test_a_command_that_fails_is_no_success(server: ApiServer, pod: ObjectKey, command: list[str]) -> None:
    """Of both it is said here that the machinery failed; a kubelet has a code for the second."""
    with pytest.raises(ApiUnavailableError, match="was not run"):
        await execute(server, pod, "main", command)


async def test_a_command_is_waited_for_only_so_long(cluster: RunningCluster, pod: ObjectKey) -> None:
    impatient = await ApiServer.connect(str(cluster.kubeconfig), 0.5)
    try:
        with pytest.raises(ApiUnavailableError, match="has not run the command within"):
            await execute(impatient, pod, "main", ["sleep", "5"])
    finally:
        await impatient.close()
