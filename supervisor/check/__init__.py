"""Checks jobs before a reclaim happens. Rules find what would go wrong and name the fix. Pure."""
