"""All mutants. Each leaves the product running."""

from mutants.catalogue import agent, decisions, job, promises, supervisor
from mutants.mutant import Mutant

CATALOGUE: tuple[Mutant, ...] = (
    *decisions.MUTANTS,
    *supervisor.MUTANTS,
    *agent.MUTANTS,
    *job.MUTANTS,
    *promises.MUTANTS,
)
