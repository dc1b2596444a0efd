"""MPIJobs of mpi-operator (kubeflow.org/v2beta1)."""
