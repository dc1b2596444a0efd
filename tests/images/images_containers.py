"""Runs containers of the built images with podman and runc, under the same restrictions as in a cluster."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.images.images_building import Image, Images
from tests.testkit.waiting import wait_until

PACKAGES = {"podman": "podman", "conmon": "conmon", "runc": "runc", "setpriv": "util-linux"}
_SECONDS = 60.0
_POLL_SECONDS = 0.05
_CGROUPS = Path("/sys/fs/cgroup")
# As a pod with `readOnlyRootFilesystem`, `drop: [ALL]` and `allowPrivilegeEscalation: false`. Limits of its own, as
# podman's defaults may be above what this machine's root may ask for.
_STRICT = (
    *("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges"),
    *("--network=host", "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096", "--rm"),
)


@dataclass(frozen=True, slots=True)
class Engine:
    """podman with a directory and a control group of its own; it wants the directory's name to be short."""

    images: Images
    directory: Path

    def once(self, image: Image, *arguments: str, more: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        command = self._command(image, arguments, more)
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS)

    def shell(self, image: Image, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script in a container, instead of what its image is for."""
        return self.once(image, "-c", script, more=["--entrypoint=/bin/sh"])

    @contextmanager
    def running(self, image: Image, *, more: Sequence[str]) -> Iterator["ImageContainer"]:
        """A container that goes on until the test ends it, or is left."""
        said = Path(tempfile.mkstemp(dir=self.directory, prefix=f"{image}-", suffix=".log")[1])
        with said.open("wb") as log:
            process = subprocess.Popen(self._command(image, (), more), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        container = ImageContainer(process, said)
        try:
            yield container
        finally:
            if process.poll() is None:
                container.stop()

    def clean_up(self) -> None:
        for group in _CGROUPS.glob(f"*/{self._group}"):
            for inner in sorted(group.rglob("*/"), reverse=True):
                inner.rmdir()
            group.rmdir()

    @property
    def _group(self) -> str:
        return f"images-{self.directory.name}"

    def _command(self, image: Image, arguments: Sequence[str], more: Sequence[str]) -> list[str]:
        engine = [f"--{name}={self.directory / name}" for name in ("root", "runroot", "tmpdir")]
        # Images are read where they were built, and nothing is written there.
        engine += ["--storage-driver=overlay", f"--storage-opt=additionalimagestore={self.images.storage / 'root'}"]
        engine += ["--runtime=/usr/sbin/runc", "--cgroup-manager=cgroupfs", "--events-backend=none"]
        run = ["run", *_STRICT, f"--cgroup-parent=/{self._group}", *more, image.reference, *arguments]
        # Its mounts end with it; where the tests are killed, so is it.
        alone = ["setpriv", "--pdeathsig=TERM", "unshare", "--mount", "--propagation=private"]
        return [str(word) for word in [*alone, "podman", *engine, *run]]


@dataclass(frozen=True, slots=True)
class ImageContainer:
    process: subprocess.Popen[bytes]
    said: Path

    def events(self, name: str) -> list[Mapping[str, Any]]:
        lines = self.said.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [record for record in records if record["event"] == name]

    def wait_for(self, holds: Callable[[], Any], what: str) -> Any:
        def look() -> Any:
            assert self.process.poll() is None, self._last_words()
            return holds()

        return wait_until(look, lambda: f"{what}; {self._last_words()}")

    def stop(self) -> int:
        """Ask it to end, as a kubelet does; its exit code."""
        self.process.terminate()
        return self.process.wait(_SECONDS)

    def _last_words(self) -> str:
        return self.said.read_text(encoding="utf-8")[-2000:]
