"""The compared operators, ours and the real training-operator: processes with an account of their own each."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import Usage, usage
from simulator.cloud.process import CloudChild, environment, script, spawn
from tests.controlplane.kinds.operators import certificate_copied, define, free_port, says_ready
from tests.controlplane.kinds.trainingoperator import trainingoperator_process
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import OperatorBinary
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until
from tests.testkit.yaml_text import documents

_DEFINITIONS = Path(__file__).parents[2] / "charts/elastic-job-supervisor/files/trainingjob-operator/crds.yaml"
_KIND = "pytorchjob"
_ANYTHING = ({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},)
_LEADS = b"operator.leads"


@dataclass(frozen=True, slots=True)
class OperatorProcess:
    """A running operator. The API server's audit log knows it as `user`."""

    user: str
    child: CloudChild

    def usage(self) -> Usage:
        """Return its usage since its start."""
        return usage(self.child.pid)


@dataclass(frozen=True, slots=True)
class OperatorHost:
    """Starts operators on one control plane. Their accounts are in the namespace `home`, and may do everything."""

    root: Path
    cluster: RunningCluster
    api: Api
    home: Namespace

    async def define(self, training_operator: OperatorBinary) -> None:
        """Define the jobs of both operators, and create what training-operator needs for its webhooks."""
        for definition in documents(_DEFINITIONS.read_text(encoding="utf-8")):
            await define(self.api, definition)
        await trainingoperator_process.prepare(self.api, training_operator.module, [_KIND])
        self._certificates.mkdir(parents=True)
        # It fills the Secret, which in a pod is mounted; outside one somebody has to copy it.
        async with self._operating("first-start", *self._training_operator(training_operator, free_port())):
            await certificate_copied(self.cluster, trainingoperator_process.SECRET, self._certificates)

    @asynccontextmanager
    async def ours(self) -> AsyncIterator[OperatorProcess]:
        """Run our operator with the settings of the chart, once it leads."""
        env = {
            "TRAININGJOB_OPERATOR_LEASE": "trainingjob-operator",
            "TRAININGJOB_OPERATOR_LEASE_NAMESPACE": self.home.name,
            "TRAININGJOB_OPERATOR_PROBE_ADDRESS": f"127.0.0.1:{free_port()}",
        }
        async with self._operating("trainingjob-operator", [script("trainingjob-operator")], env) as operator:
            await until(lambda: _LEADS in _read(operator.child), "our operator leads")
            yield operator

    @asynccontextmanager
    async def training_operator(
        self, name: str, binary: OperatorBinary, flags: Sequence[str] = ()
    ) -> AsyncIterator[OperatorProcess]:
        """Run training-operator for PyTorchJobs with further flags, once it is ready."""
        health = free_port()
        async with self._operating(name, *self._training_operator(binary, health, flags)) as operator:

            def is_ready() -> bool:
                operator.child.check()
                return says_ready(health)

            await until(is_ready, f"{name} is ready", every=0.1)
            yield operator

    def _training_operator(
        self, binary: OperatorBinary, health: int, flags: Sequence[str] = ()
    ) -> tuple[list[str], dict[str, str]]:
        env = {"MY_POD_NAMESPACE": trainingoperator_process.NAMESPACE, "TMPDIR": str(self.root / "training-operator")}
        return [
            str(binary.program),
            f"-enable-scheme={_KIND}",
            "-metrics-bind-address=0",
            f"-health-probe-bind-address=127.0.0.1:{health}",
            f"-webhook-server-port={free_port()}",
            *flags,
        ], env

    @property
    def _certificates(self) -> Path:
        return self.root / "training-operator" / "k8s-webhook-server" / "serving-certs"

    @asynccontextmanager
    async def _operating(
        self, name: str, command: Sequence[str], env: dict[str, str]
    ) -> AsyncIterator[OperatorProcess]:
        await self.home.account(name, cluster_rules=_ANYTHING)
        kubeconfig = str(await self.home.kubeconfig(name, self.root / f"{name}.kubeconfig"))
        where = {"KUBECONFIG": kubeconfig, "TRAININGJOB_OPERATOR_KUBECONFIG": kubeconfig}
        child = spawn(name, command, environment(self.root, {**env, **where}), self.root / "logs" / f"{name}.log")
        try:
            yield OperatorProcess(f"system:serviceaccount:{self.home.name}:{name}", child)
        finally:
            if child.running:
                await child.stop()


def _read(child: CloudChild) -> bytes:
    child.check()
    return child.log.read_bytes()
