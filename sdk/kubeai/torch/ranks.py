"""The ranks of one round, for whatever depends on them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic.integrations.torch import device_type
from torch.distributed.device_mesh import init_device_mesh  # type: ignore[import-not-found,unused-ignore]

from .group import remember_mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh  # type: ignore[import-not-found,unused-ignore]


@dataclass(frozen=True)
class RoundRanks:
    """This rank among those of a round.

    Attributes:
        rank: Of this process.
        size: The number of ranks.
        step: The number of finished steps with which the round begins.
        round: The number of the round.
    """

    rank: int
    size: int
    step: int
    round: int

    @classmethod
    def present(cls, step: int, number: int) -> RoundRanks:
        """Return those of the default process group."""
        return cls(dist.get_rank(), dist.get_world_size(), step, number)

    def mesh(self, **sizes: int) -> DeviceMesh:
        """Return a mesh of all ranks; called in every rank.

            ranks.mesh()
            ranks.mesh(replicate=-1, shard=2)

        The name of a dimension gets the round's number, as in `shard_3`: torch takes meshes of one name and size for
        the same, and caches what they mean for this process, which may have had another rank in the round before.

        Args:
            sizes: The number of ranks in each dimension; -1 for those that the others leave. Without any, one dimension
                `ranks` of all.

        Raises:
            ValueError: So many ranks cannot be divided like this.
        """
        given = sizes or {"ranks": -1}
        known = prod(size for size in given.values() if size != -1)
        whole = {name: self.size // known if size == -1 else size for name, size in given.items()}
        if prod(whole.values()) != self.size:
            raise ValueError(f"{self.size} ranks cannot be divided into {given}")
        names = tuple(f"{name}_{self.round}" for name in whole)
        mesh = init_device_mesh(device_type(), tuple(whole.values()), mesh_dim_names=names)
        remember_mesh(mesh)
        return mesh
