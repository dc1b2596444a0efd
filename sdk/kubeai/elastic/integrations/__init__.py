"""Integrations with training frameworks. Each module needs its framework; none is imported by the SDK itself."""
