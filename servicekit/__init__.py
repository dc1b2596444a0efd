"""Building blocks for services: clock, lifecycle, logs, settings, work queues, metrics, probes, Kubernetes client."""
