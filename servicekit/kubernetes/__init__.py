"""A client for a cluster's API server: the connection, clients for resources, and caches that reflectors keep in step.

Objects are decoded from raw JSON, and only in part: the client library's own models cost 165 µs an object.
"""
