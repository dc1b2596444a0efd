"""Polls the sources of reclaim notices for this node and reports the notices to the supervisor."""
