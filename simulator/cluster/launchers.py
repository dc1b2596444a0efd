"""Runs a launcher pod's container as a process of this machine."""

import sys
from collections.abc import Mapping
from pathlib import Path

from simulator.cloud.process import CloudChild, environment, spawn
from simulator.cluster.objects import ManifestConfigMap, RunPod
from simulator.cluster.paths import ClusterPaths, PodPaths, write
from simulator.cluster.ssh import HOSTS
from simulator.et_operator.names import EDL

PORT = "EDL_PORT"
"""Variable with the port that a discovery script probes; 0 = no probe, because all hosts are this machine."""


def initialise(home: PodPaths, config: ManifestConfigMap) -> None:
    """Do the work of the pod's init container: copy host list and script from the ConfigMap."""
    write(home.edl / "hostfile", config.data.get("hostfile", ""))
    write(home.edl / "discover_hosts.sh", _localized(home, config.data.get("discover_hosts.sh", "")))
    (home.edl / "discover_hosts.sh").chmod(0o700)


def variables(home: PodPaths) -> dict[str, str]:
    """Return the variables of every process and command in the container."""
    return {"EDL": str(home.edl), "KUBEAI_DIR": str(home.kubeai), PORT: "0"}


def start(pod: RunPod, paths: ClusterPaths, run: int) -> CloudChild:
    """Run the container's command. `run` counts the launchers of the job."""
    home, job = paths.home(pod), paths.job(pod.metadata.namespace, pod.job)
    container = pod.spec.containers[0]
    ours = {
        **variables(home),
        HOSTS: str(paths.hosts(pod)),
        "SIM_EVENTS": str(job / "events"),
        "SIM_STATE": str(home.state),
        "KUBEAI_RUN": str(run),
    }
    env = environment(paths.root, {**{variable.name: variable.value for variable in container.env}, **ours})
    command = [_localized(home, word) for word in (*container.command, *container.args)]
    return spawn(pod.name, command, _with_horovodrun(paths.root, env), job / f"launcher-{run}.log")


def _localized(home: PodPaths, text: str) -> str:
    # There is no container, so its /etc/edl is another directory.
    return text.replace(EDL, str(home.edl))


def _with_horovodrun(root: Path, env: Mapping[str, str]) -> dict[str, str]:
    script = root / "bin" / "horovodrun"
    if not script.exists():
        write(script, f'#!/bin/sh\nexec {sys.executable} -m simulator.cluster.horovodrun "$@"\n')
        script.chmod(0o700)
    return {**env, "PATH": f"{script.parent}:{env['PATH']}"}
