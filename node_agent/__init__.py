"""The agent of a node: polls the sources of reclaim notices and reports the notices to the supervisor."""
