"""JobSets of Kubernetes (jobset.x-k8s.io): Jobs that are one run, suspended and resumed together."""
