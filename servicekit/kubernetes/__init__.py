"""The API server of a cluster: one connection to it, its collections, and a view of each that follows it.

Raw JSON, trimmed at decode: the client library's own models cost 165 µs for each object.
"""
