"""Checks jobs before a reclaim does: rules that say what would go wrong, and the fix. Pure."""
