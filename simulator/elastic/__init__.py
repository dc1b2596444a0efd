"""A small elastic launcher and its workers' library: Horovod elastic on one machine, as far as a reclaim can tell."""
