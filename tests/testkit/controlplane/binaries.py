"""The programs of a real control plane, built from pinned Go modules outside the checkout, once for each set of pins.

Run as a script: prints where they are, built where they are missing; with `clients`, helm and kubectl instead, with
`operators`, the operators that have pins, and with `hub`, the programs of a hub of many clusters.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.testkit.caches import alone, cache

# A directory that has the programs already; the name is the one that Kubernetes' own test tools look at.
ASSETS = "KUBEBUILDER_ASSETS"
# The version of Kubernetes whose control plane is built and run, such as 1.30; the usual one without it.
KUBERNETES = "KUBERNETES"
PINS = Path(__file__).parent / "pins"
# A folder with a go.mod each, which names the operator's programs by its `tool` lines. Beside it may lie edits of its
# source, which a fixed port needs so that two can run on one machine: {file: {text: other text}}.
_OPERATORS = "operators"
_EDITS = "edits.json"
# The API server alone takes four minutes on two busy cores, and half a gigabyte of modules comes first.
_SECONDS = 1800.0
_CACHE = "controlplane"
_VERSION = "k8s.io/component-base/version"


class BinaryProgram(StrEnum):
    """The programs of a control plane, in the order of their start."""

    ETCD = "etcd"
    API_SERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KWOK = "kwok"


class Tool(StrEnum):
    """The clients of a control plane."""

    HELM = "helm"
    KUBECTL = "kubectl"
    KUBELET = "kubelet"
    KUBE_PROXY = "kube-proxy"


class HubProgram(StrEnum):
    """The programs that make a hub of a control plane, in the order of their start."""

    API_SERVER = "aggregated-apiserver"
    WEBHOOK = "webhook"
    CONTROLLER_MANAGER = "controller-manager"
    SCHEDULER = "scheduler"


class NoGo(Exception):  # noqa: N818  # It names what is so.
    """This machine cannot build programs, because Go is missing or too old."""


class BinaryNotBuilt(Exception):  # noqa: N818  # As above.
    """The programs are missing, and this machine could build them."""


_Name = TypeVar("_Name", BinaryProgram, Tool, HubProgram, str)


@dataclass(frozen=True, slots=True)
class OperatorBinary:
    """An operator's program, and the directory of the Go module that it was built from, which has its CRDs."""

    program: Path
    module: Path


@dataclass(frozen=True, slots=True)
class HubBinaries:
    """The programs of a hub, and the directory of the Go module that they were built from, which has its CRDs."""

    programs: Mapping[HubProgram, Path]
    module: Path


@dataclass(frozen=True, slots=True)
class _Module(Generic[_Name]):
    name: str
    packages: Mapping[_Name, str]

    @property
    def pins(self) -> Path:
        return PINS / self.name

    @property
    def home(self) -> Path:
        pins = b"".join(path.read_bytes() for path in sorted(self.pins.iterdir()))
        return cache(_CACHE) / f"{self.pins.name}-{hashlib.sha256(pins + platform.machine().encode()).hexdigest()[:12]}"


def _of_version(name: str) -> str:
    """The folder of the pins of programs of Kubernetes, of the version that is asked for."""
    return "-".join(filter(None, (name, os.environ.get(KUBERNETES))))


# Two, because their dependencies contradict each other.
_KUBERNETES = _Module(
    _of_version("kubernetes"),
    {
        BinaryProgram.ETCD: "go.etcd.io/etcd/server/v3",
        BinaryProgram.API_SERVER: "k8s.io/kubernetes/cmd/kube-apiserver",
        BinaryProgram.CONTROLLER_MANAGER: "k8s.io/kubernetes/cmd/kube-controller-manager",
        BinaryProgram.SCHEDULER: "k8s.io/kubernetes/cmd/kube-scheduler",
    },
)
KUBERNETES_PINS = _KUBERNETES.pins
"""The directory that pins the version of the control plane."""
_KWOK = _Module("kwok", {BinaryProgram.KWOK: "sigs.k8s.io/kwok/cmd/kwok"})
_HELM = _Module("helm", {Tool.HELM: "helm.sh/helm/v3/cmd/helm"})
# Of the same version as the usual control plane, and apart: that is wanted without them.
_KUBECTL = _Module("kubectl", {Tool.KUBECTL: "k8s.io/kubernetes/cmd/kubectl"})
_NODE = _Module(
    _of_version("node"),
    {Tool.KUBELET: "k8s.io/kubernetes/cmd/kubelet", Tool.KUBE_PROXY: "k8s.io/kubernetes/cmd/kube-proxy"},
)
_HUB = _Module("karmada", {program: f"github.com/karmada-io/karmada/cmd/{program}" for program in HubProgram})

_CLIENTS = {Tool.HELM: _HELM, Tool.KUBECTL: _KUBECTL}


def binaries() -> Mapping[BinaryProgram, Path]:
    """Returns the path of each program; builds nothing.

    Raises:
        BinaryNotBuilt: One is missing.
        NoGo: One is missing and cannot be built here.
    """
    paths = _paths()
    missing = [program for program, path in paths.items() if not path.exists()]
    if missing:
        _refuse_incomplete_assets(paths)
        _require_go()
        raise BinaryNotBuilt(f"{missing[0]} is not built; `make controlplane` does it, in some ten minutes")
    return paths


def build() -> Mapping[BinaryProgram, Path]:
    """Returns the path of each program, and builds missing programs.

    Raises:
        BinaryNotBuilt: One cannot be built; the message has the compiler's last words.
        NoGo: One is missing and cannot be built here.
    """
    paths = _paths()
    _refuse_incomplete_assets(paths)
    wanted = [module for module in (_KUBERNETES, _KWOK) if module.home in {path.parent for path in paths.values()}]
    _ensure_built(wanted)
    return paths


def client_path(tool: Tool) -> Path:
    """Returns the path of helm or kubectl; builds nothing.

    Raises:
        BinaryNotBuilt: It is missing.
        NoGo: It is missing and cannot be built here.
    """
    path = _CLIENTS[tool].home / tool
    if not path.exists():
        _require_go()
        raise BinaryNotBuilt(f"{tool} is not built; `make clients` does it, in a minute or two")
    return path


def build_clients() -> Sequence[Path]:
    """Helm and kubectl, built first where they are missing; sets of their own, as a control plane is wanted without.

    Raises:
        BinaryNotBuilt: One cannot be built.
        NoGo: One is missing and cannot be built here.
    """
    _ensure_built(_CLIENTS.values())
    return [module.home / tool for tool, module in _CLIENTS.items()]


def operator(name: str, program: str = "") -> OperatorBinary:
    """An operator by the name of its folder of pins; builds nothing.

    Args:
        name: The folder.
        program: One of its programs, for an operator that has several.

    Raises:
        BinaryNotBuilt: It is missing.
        NoGo: There is no Go, which built it or would.
    """
    module = _operator(name)
    _require_go()
    if not module.home.exists():
        raise BinaryNotBuilt(f"{name} is not built; `make operators` does it, in a few minutes")
    program = program or name
    return OperatorBinary(module.home / program, _source(module, module.packages[program]))


def build_operators() -> Sequence[Path]:
    """All operators, built first where they are missing.

    Raises:
        BinaryNotBuilt: One cannot be built.
        NoGo: One is missing and cannot be built here.
    """
    modules = [_operator(pins.name) for pins in sorted((PINS / _OPERATORS).iterdir())]
    _ensure_built(modules)
    return [module.home / name for module in modules for name in module.packages]


def hub() -> HubBinaries:
    """The programs of a hub; builds nothing.

    Raises:
        BinaryNotBuilt: They are missing.
        NoGo: There is no Go, which built them or would.
    """
    _require_go()
    if not _HUB.home.exists():
        raise BinaryNotBuilt("the hub is not built; `make hub` does it, in some six minutes")
    programs = {program: _HUB.home / program for program in HubProgram}
    return HubBinaries(programs, _source(_HUB, _HUB.packages[HubProgram.CONTROLLER_MANAGER]))


def build_hub() -> Sequence[Path]:
    """The programs of a hub, built first where they are missing; apart, as only the tests of a fleet want them.

    Raises:
        BinaryNotBuilt: One cannot be built.
        NoGo: One is missing and cannot be built here.
    """
    _ensure_built([_HUB])
    return [_HUB.home / program for program in HubProgram]


def build_node() -> Mapping[Tool, Path]:
    """The programs of a real node, built first where they are missing.

    Raises:
        BinaryNotBuilt: One cannot be built.
        NoGo: One is missing and cannot be built here.
    """
    _refuse_unknown_version(_NODE)
    _ensure_built([_NODE])
    return {program: _NODE.home / program for program in _NODE.packages}


def kubernetes_version() -> str:
    """The pinned version of the control plane, such as 1.34.4."""
    return _version(_KUBERNETES)


def _version(module: _Module[Any]) -> str:
    return _pinned(module.pins, r"^\s*k8s\.io/kubernetes v(\S+)")


def _operator(name: str) -> _Module[str]:
    pins = f"{_OPERATORS}/{name}"
    tools = re.findall(r"^(?:tool |\t)([^\s(]+)$", (PINS / pins / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
    programs = [name] if len(tools) == 1 else [tool.rpartition("/")[2] for tool in tools]
    return _Module(pins, dict(zip(programs, tools, strict=True)))


def _source(module: _Module[Any], package: str) -> Path:
    return Path(_run_go(["go", "list", "-f", "{{.Module.Dir}}", package], module).strip())


def _paths() -> dict[BinaryProgram, Path]:
    _refuse_unknown_version(_KUBERNETES)
    built = {program: module.home / program for module in (_KUBERNETES, _KWOK) for program in module.packages}
    assets = _assets()
    if not assets:
        return built
    given = {program: assets / program for program in BinaryProgram}
    # kwok is part of no such directory by custom.
    if not given[BinaryProgram.KWOK].exists():
        given[BinaryProgram.KWOK] = Path(shutil.which(BinaryProgram.KWOK) or built[BinaryProgram.KWOK])
    return given


def _refuse_unknown_version(module: _Module[Any]) -> None:
    if not module.pins.exists():
        name = module.name.partition("-")[0]
        known = sorted(pins.name.removeprefix(f"{name}-") for pins in PINS.glob(f"{name}-*"))
        raise BinaryNotBuilt(f"{KUBERNETES}={os.environ[KUBERNETES]} is none of {', '.join(known)}")


def _assets() -> Path | None:
    assets = os.environ.get(ASSETS)
    return Path(assets) if assets else None


def _refuse_incomplete_assets(paths: Mapping[BinaryProgram, Path]) -> None:
    missing = [program for program in _KUBERNETES.packages if not paths[program].exists()]
    if missing and _assets():
        raise BinaryNotBuilt(f"{ASSETS}={_assets()} has no {missing[0]}; without {ASSETS} all are built")


def _ensure_built(modules: Collection[_Module[Any]]) -> None:
    """Builds the modules that are missing, while no other process builds any.

    Raises:
        BinaryNotBuilt: One cannot be built.
        NoGo: One is missing and cannot be built here.
    """
    if all(module.home.exists() for module in modules):
        return
    _require_go()
    with alone(cache(_CACHE)):
        for module in modules:
            _build_once(module)


def _build_once(module: _Module[Any]) -> None:
    home = module.home
    if home.exists():
        return
    # Whoever builds is alone: what others were building, they left unfinished.
    for left in home.parent.glob(".building-*"):
        shutil.rmtree(left, ignore_errors=True)
    # Built beside its final place and then renamed: whoever finds it finds all of it.
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".building-") as building:
        for program, package in module.packages.items():
            _build(module, package, Path(building) / "bin" / program)
        (Path(building) / "bin").rename(home)


def _build(module: _Module[Any], package: str, output: Path) -> None:
    sys.stderr.write(f"building {output.name}\n")
    command = ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags", _linked(module), "-o", str(output)]
    try:
        _run_go([*command, *_edited(module, package, output.parents[1]), package], module)
    except subprocess.CalledProcessError as error:
        raise BinaryNotBuilt(f"{output.name} cannot be built: {' '.join(error.stderr.split())[-300:]}") from error
    except subprocess.TimeoutExpired as error:
        raise BinaryNotBuilt(f"{output.name} was not built after {_SECONDS:g} s") from error


def _edited(module: _Module[Any], package: str, directory: Path) -> Iterator[str]:
    """Flags that build from an edited copy of the program's module; Go allows no overlay of its module cache."""
    if not (module.pins / _EDITS).exists():
        return
    source = directory / "source"
    shutil.copytree(_source(module, package), source, copy_function=shutil.copyfile)
    for name, edits in json.loads((module.pins / _EDITS).read_bytes()).items():
        text = (source / name).read_text(encoding="utf-8")
        for old, new in edits.items():
            if old not in text:
                raise BinaryNotBuilt(f"{module.name}: {name} has no {old!r}")
            text = text.replace(old, new)
        (source / name).chmod(0o644)
        (source / name).write_text(text, encoding="utf-8")
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(module.pins / name, directory / name)
    path = _run_go(["go", "list", "-f", "{{.Module.Path}}", package], module).strip()
    with (directory / "go.mod").open("a", encoding="utf-8") as pins:
        pins.write(f"\nreplace {path} => {source}\n")
    yield f"-modfile={directory / 'go.mod'}"


def _run_go(command: Sequence[str], module: _Module[Any]) -> str:
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        # The pins alone decide, not what somebody has set for other work.
        "GOFLAGS": "-mod=readonly",
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
    }
    return subprocess.run(
        command, cwd=module.pins, env=environment, check=True, capture_output=True, text=True, timeout=_SECONDS
    ).stdout


def _linked(module: _Module[Any]) -> str:
    if module is _HELM:
        return " ".join(["-s -w", *_helm_claims()])
    if module not in (_KUBERNETES, _KUBECTL, _NODE):
        return "-s -w"
    # Without it the API server says v0.0.0, and clients that ask for its version are misled.
    version = _version(module)
    major, minor, _ = version.split(".", 2)
    said = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(["-s -w", *(f"-X {_VERSION}.{name}={value}" for name, value in said.items())])


def _helm_claims() -> Iterator[str]:
    # Without it helm takes every cluster that it does not ask for Kubernetes 1.20.
    major, minor, _ = _version(_KUBECTL).split(".", 2)
    for package in ("pkg/chartutil", "pkg/lint/rules"):
        for part, number in (("Major", major), ("Minor", minor)):
            yield f"-X helm.sh/helm/v3/{package}.k8sVersion{part}={number}"


def _require_go() -> None:
    major, minor = needed = max(_number(_pinned(module.pins, r"^(go \S+)")) for module in (_KUBERNETES, _KWOK, _HELM))
    wanted = f"a control plane is built with Go {major}.{minor} or later"
    if not shutil.which("go"):
        raise NoGo(f"{wanted}, and there is none on the PATH")
    said = subprocess.run(["go", "env", "GOVERSION"], check=False, capture_output=True, text=True).stdout.strip()  # noqa: S607  # The PATH's is the one that builds.
    if _number(said) < needed:
        raise NoGo(f"{wanted}, and the one on the PATH is {said or 'of no known version'}")


def _number(version: str) -> tuple[int, int]:
    found = re.search(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _pinned(pins: Path, pattern: str) -> str:
    found = re.search(pattern, (pins / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise LookupError(f"{pins / 'go.mod'} has no line {pattern}")
    return found[1]


_BUILDERS: Mapping[str, Callable[[], Iterable[Path]]] = {
    "": lambda: build().values(),
    "clients": build_clients,
    "operators": build_operators,
    "hub": build_hub,
}

if __name__ == "__main__":
    try:
        for path in _BUILDERS[sys.argv[1] if sys.argv[1:] else ""]():
            sys.stdout.write(f"{path}\n")
    except (NoGo, BinaryNotBuilt) as reason:
        sys.exit(f"no control plane: {reason}")
