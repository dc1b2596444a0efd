"""What the supervisor sees of a cluster: trimmed copies of its pods and nodes, followed from the API server."""
