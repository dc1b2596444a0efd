"""The building blocks of services: clock, lifecycle, logs, settings, work queues, metrics, Kubernetes client."""
