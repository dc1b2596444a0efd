"""The supervisor's part at an agreed step, played by files."""

from pathlib import Path

from kubeai.elastic import regroup


class FileGate:
    """Lets all ranks pause at the step that the file `agreed` names, and says in a file that this one does.

    Args:
        root: Where the files are.
        name: Of this process.
    """

    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        self._name = name
        self._step = 0

    def install(self) -> None:
        """Take the place of `kubeai.elastic.regroup` in this process."""
        vars(regroup).update(should_regroup=self._should_regroup, report_holding=self._report_holding)

    def _should_regroup(self, step: int) -> bool:
        self._step = step
        try:
            return int((self._root / "agreed").read_text(encoding="ascii")) == step
        except (OSError, ValueError):
            return False

    def _report_holding(self) -> None:
        (self._root / f"holding-{self._step}-{self._name}").touch()
