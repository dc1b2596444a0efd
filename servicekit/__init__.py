"""What every service of this project stands on: clock, lifecycle, logs, settings, probes, fault reports.

It knows nothing of reclaims.
"""
