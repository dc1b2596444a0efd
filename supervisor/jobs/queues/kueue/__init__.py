"""Kueue (kueue.x-k8s.io): a Workload for each job that it manages."""
