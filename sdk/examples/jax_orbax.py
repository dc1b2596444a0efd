"""JAX with Orbax: all processes stop at one agreed step and write one checkpoint together.

COORDINATOR=HOST:PORT PROCESSES=2 PROCESS=0 jax_orbax.py DIRECTORY [STEPS]   # in each process, with its own number
"""

import os
import sys
from pathlib import Path
from typing import Any, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import kubeai.elastic as kubeai
from kubeai.elastic.integrations.orbax import OrbaxCheckpoints

GLOBAL_BATCH = 16


def sharded(mesh: Mesh, array: Any) -> Any:
    """Return an array of which each process has an equal part of the rows. All processes pass the whole."""
    sharding = NamedSharding(mesh, PartitionSpec("processes"))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def new_state(mesh: Mesh) -> Any:
    """Return parameters and momenta, in parts as FSDP has them."""
    generator = np.random.default_rng(0)
    shapes = {"first": (16, 32), "last": (32, 4)}
    parameters = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    momenta = {name: np.zeros_like(value) for name, value in parameters.items()}
    return jax.tree.map(lambda array: sharded(mesh, array), {"parameters": parameters, "momenta": momenta})


def batches_from(mesh: Mesh, first: int, steps: int) -> Iterator[Any]:
    """Yield the global batches from step `first` on. The same step has the same batch in every run."""
    for step in range(first, steps):
        yield sharded(mesh, np.random.default_rng(step).normal(size=(GLOBAL_BATCH, 16)).astype(np.float32))


@jax.jit
def update(state: Any, batch: Any, step: Any) -> Any:
    """Return the state after one step, and its loss."""
    key = jax.random.fold_in(jax.random.key(0), step)  # dropout needs no state of its own

    def loss_of(parameters: Any) -> Any:
        hidden = jnp.tanh(batch @ parameters["first"])
        kept = jax.random.bernoulli(key, 0.8, hidden.shape)
        return jnp.square((hidden * kept) @ parameters["last"]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state["parameters"])
    momenta = jax.tree.map(lambda old, new: 0.9 * old + new, state["momenta"], gradients)
    parameters = jax.tree.map(lambda old, change: old - 0.01 * change, state["parameters"], momenta)
    return {"parameters": parameters, "momenta": momenta}, loss


def main(directory: str, steps: int) -> None:
    """Train."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(os.environ["COORDINATOR"], int(os.environ["PROCESSES"]), int(os.environ["PROCESS"]))
    kubeai.init(collective=True)  # a save needs all processes
    mesh = Mesh(np.array(jax.devices()), ("processes",))
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    checkpoints = OrbaxCheckpoints(ocp.CheckpointManager(Path(directory).absolute(), options=options))
    first, state = checkpoints.load(new_state(mesh))

    def save(step: int) -> None:
        checkpoints.save(step, state)

    for step, batch in kubeai.steps(batches_from(mesh, first, steps), save, first=first):
        state, loss = update(state, batch, step)
        sys.stdout.write(f"rank {jax.process_index()} step {step} loss {float(loss).hex()}\n")
        sys.stdout.flush()
        if (step + 1) % 50 == 0:
            checkpoints.save_in_background(step + 1, state)
    save(steps)
    checkpoints.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
