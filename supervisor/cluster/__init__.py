"""The supervisor's caches of a cluster: trimmed pods, nodes and Events."""
