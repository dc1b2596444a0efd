"""Simulates in simulated time what each way to handle reclaims makes of capacity that comes and goes."""
