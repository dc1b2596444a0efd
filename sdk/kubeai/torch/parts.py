"""The part of one rank of a state that is divided among the ranks: rows of tensors, and what is whole in each rank."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Optional, Tuple

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic.integrations.torch import device_type
from kubeai.elastic.integrations.zero import is_zero, part_of_zero
from torch.nn.parallel import DistributedDataParallel  # type: ignore[import-not-found,unused-ignore]

from .moves import EVERY_PART, PartClaim, rows_of

if TYPE_CHECKING:
    from .copy_files import CopyFile

try:
    from torch.distributed.tensor import DTensor, Shard  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # before torch 2.5
    DTensor = Shard = None  # type: ignore[assignment,misc,unused-ignore]

__all__ = [
    "CarriedPart",
    "DTensor",
    "DividedState",
    "DividedTensor",
    "Path",
    "Shard",
    "dealt",
    "divided_tensors",
    "free_memory",
    "leaves",
    "mapped",
    "on_cpu",
    "reassigned",
]

_COPIES = 2.5
"""On a GPU, so much memory must be free, in parts: the new one, and the one that `build` makes."""

Path = Tuple[object, ...]
"""Names the place of a tensor in nested dictionaries, lists and tuples."""


class DividedTensor(NamedTuple):
    """Stands for a tensor that is divided among the ranks, in the description of the state of one of them.

    The parts have rows of it, or its `owner` has it whole, which may be EVERY_PART.
    """

    shape: Tuple[int, ...]  # noqa: UP006 - Python 3.8
    stride: Tuple[int, ...]  # noqa: UP006 - Python 3.8
    dtype: torch.dtype
    owner: Optional[int] = None  # noqa: UP045 - Python 3.8

    def rows_of(self, parts: int, part: int) -> tuple[int, int]:
        """Return the first row of a part and the row after its last one."""
        return rows_of(self.shape[0], parts, part, self.owner)


class DividedState:
    """The state of this rank: `rows`, its part of the tensors that are divided, by path; and `rest`, whole in each.

    In `rest`, a DividedTensor is in the place of each of these tensors. `form` stands for those that all ranks have,
    and for the round: another round may come to the same step with other numbers.

    With a ZeroRedundancyOptimizer, the states of the parameters that this rank owns are in it, and the parameters of
    DistributedDataParallel are tensors of which each rank has all rows. `zeros` has the names of these optimizers.

    Args:
        states: By name, what has a `state_dict`.
        number: Of the round.
    """

    def __init__(self, states: Mapping[str, Any], number: int = 0) -> None:
        self.tensors: dict[Path, Any] = {}
        self.zeros = [name for name, each in states.items() if is_zero(each)]
        self._parameters = {
            (name, parameter)
            for name, each in states.items()
            if self.zeros and isinstance(each, DistributedDataParallel)
            for parameter, _ in each.named_parameters(remove_duplicate=False)
        }
        tree = {name: part_of_zero(each) if name in self.zeros else each.state_dict() for name, each in states.items()}
        self.rest = mapped(tree, self._take, self._is_divided)
        self.rows = {path: _local(leaf).detach() for path, leaf in self.tensors.items()}
        common = {path: each for path, each in divided_tensors(self.rest).items() if each.owner in (None, EVERY_PART)}
        told = repr((number, common)).encode()
        self.form = int.from_bytes(hashlib.sha256(told).digest()[:7], "big")

    @property
    def size(self) -> int:
        """How many bytes of divided tensors this rank has."""
        return _bytes_of(self.rows)

    @property
    def share(self) -> int:
        """How many bytes of them are this rank's if no other one has them as well."""
        own = PartClaim(0, dist.get_world_size(), dist.get_rank(), self.form)
        return _bytes_of(dealt(self.rest, self.rows, own)[1])

    def reason_against(self) -> str | None:
        """Return why this state cannot be handed over by rows, None if it can."""
        if not self.tensors:
            return "none of its tensors is divided among the ranks"
        rank, world, device = dist.get_rank(), dist.get_world_size(), device_type()
        for path, tensor in self.tensors.items():
            name, local = ".".join(map(str, path)), self.rows[path]
            if isinstance(tensor, DTensor):
                mesh = tensor.device_mesh
                if mesh.ndim != 1 or mesh.mesh.tolist() != list(range(world)):
                    return f"the mesh of {name} is not one dimension of all ranks"
                if tuple(tensor.placements) != (Shard(0),):
                    return f"{name} is not divided by rows alone"
                first, end = rows_of(tensor.shape[0], world, rank)
                if local.shape != (end - first, *tensor.shape[1:]):
                    return f"{name} is not divided evenly"
            if not local.is_contiguous():
                return f"{name} is not in the order of its rows"
            if type(local) is not torch.Tensor:
                return f"{name} has parts of {type(local).__name__}"
            if local.device.type != device:
                return f"{name} is on {local.device.type}, and the process group takes {device}"
        kinds = [type(leaf).__name__ for leaf in leaves(self.rest) if _is_unknown(leaf)]
        return f"it has a {kinds[0]}" if kinds else None

    def reason_of_memory(self) -> str | None:
        """Return why this rank cannot have a part twice, None if it can."""
        if device_type() != "cuda":
            return None
        return "the GPU has not the memory for two parts" if free_memory() < _COPIES * self.size else None

    def _is_divided(self, path: Path, leaf: Any) -> bool:
        is_owned = self._owner(path) is not None and isinstance(leaf, torch.Tensor) and leaf.dim() > 0
        return is_owned or isinstance(leaf, DTensor)

    def _owner(self, path: Path) -> int | None:
        if path in self._parameters:
            return EVERY_PART
        return dist.get_rank() if path[0] in self.zeros and path[1] == "state" else None

    def _take(self, path: Path, leaf: Any) -> DividedTensor:
        self.tensors[path] = leaf
        return DividedTensor(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, self._owner(path))


@dataclass(frozen=True)
class CarriedPart:
    """Holds the part of the state that a rank takes out of a round, in memory.

    Attributes:
        claim: Which part of which state.
        rows: Its rows of the divided tensors, by path.
        rest: As of DividedState.
        random: The states of random number generators, encoded, by rank: of rank r of R in part r modulo the number of
            parts.
        file: Where the rows are, if this part is a copy that outlives the process. Training must not change them then.
    """

    claim: PartClaim
    rows: Mapping[Path, torch.Tensor]
    rest: Any
    random: Mapping[int, bytes]
    file: CopyFile | None = None


def free_memory() -> int:
    """Return how many bytes are free on the GPU; what torch has in its cache counts as free."""
    free: int = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free


def mapped(tree: Any, change: Callable[[Path, Any], Any], applies: Callable[[Path, Any], bool], path: Path = ()) -> Any:
    """Return a copy of nested dictionaries, lists and tuples in which the leaves that `applies` says are changed."""
    if isinstance(tree, dict):
        return {key: mapped(each, change, applies, (*path, key)) for key, each in tree.items()}
    if isinstance(tree, list):
        return [mapped(each, change, applies, (*path, index)) for index, each in enumerate(tree)]
    if type(tree) is tuple:
        return tuple(mapped(each, change, applies, (*path, index)) for index, each in enumerate(tree))
    return change(path, tree) if applies(path, tree) else tree


def leaves(tree: Any) -> list[Any]:
    """Return what is neither a dictionary nor a list nor a tuple."""
    found: list[Any] = []
    mapped(tree, lambda _, leaf: found.append(leaf), lambda *_: True)
    return found


def divided_tensors(rest: Any) -> dict[Path, DividedTensor]:
    """Return the divided tensors by path, in an order that is the same in every rank."""
    found: dict[Path, DividedTensor] = {}
    mapped(rest, found.__setitem__, lambda _, leaf: isinstance(leaf, DividedTensor))
    return {path: found[path] for path in sorted(found, key=repr)}


def reassigned(rest: Any, owner_of: Callable[[Path, Optional[int]], Optional[int]]) -> Any:  # noqa: UP045 - Python 3.8
    """Return a description of a state in which each divided tensor has the owner that `owner_of` says."""
    return mapped(
        rest,
        lambda path, tensor: tensor._replace(owner=owner_of(path, tensor.owner)),
        lambda _, leaf: isinstance(leaf, DividedTensor),
    )


def dealt(rest: Any, rows: Mapping[Path, torch.Tensor], claim: PartClaim) -> tuple[Any, dict[Path, torch.Tensor]]:
    """Return the description and the rows of a part without what other parts have as well.

    Of a tensor that each part has whole, each keeps its share of the rows: together they have it once. Nothing is
    copied.
    """
    once = reassigned(rest, lambda _, owner: None if owner == EVERY_PART else owner)
    shared = [path for path, tensor in divided_tensors(rest).items() if tensor.owner == EVERY_PART]
    own = {path: slice(*rows_of(len(rows[path]), claim.parts, claim.part)) for path in shared}
    return once, {**rows, **{path: rows[path][span] for path, span in own.items()}}


def _bytes_of(rows: Mapping[Path, torch.Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in rows.values())


def _local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _is_unknown(leaf: Any) -> bool:
    """Return whether a leaf may have tensors in it that nobody sees: a named tuple, or a kind of tensor of its own."""
    if isinstance(leaf, tuple):
        return not isinstance(leaf, (DividedTensor, torch.Size))
    return isinstance(leaf, torch.Tensor) and type(leaf) not in (torch.Tensor, torch.nn.Parameter)


def on_cpu(tree: Any) -> Any:
    """Return nested dictionaries, lists and tuples with their tensors in main memory."""
    return mapped(tree, lambda _, leaf: leaf.detach().cpu(), lambda _, leaf: isinstance(leaf, torch.Tensor))
