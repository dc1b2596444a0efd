"""Authentication: tokens, and the principals that they identify."""
