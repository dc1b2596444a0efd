"""The contracts between the parts."""
