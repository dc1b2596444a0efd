"""Ends what the meshes of a round refer to.

What torch caches for DTensors refers to meshes for ever, and with torch 2.15 a mesh refers to its process groups. So
each round would leave descriptors and threads of gloo behind.
"""

from __future__ import annotations

from typing import Any

_present: list[Any] = []
"""The meshes of the present round."""


def remember_mesh(mesh: Any) -> None:
    """Note a mesh of the present round."""
    _present.append(mesh)


def forget_meshes() -> None:
    """Let go of the process groups of this round's meshes, which are not used any more."""
    for mesh in _present:
        getattr(mesh, "_pg_registry", {}).clear()
    _present.clear()
