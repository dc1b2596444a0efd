"""What people and monitoring see of the supervisor: status, page, metrics and Kubernetes Events."""
