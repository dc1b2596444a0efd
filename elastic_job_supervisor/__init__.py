"""The package that the wheel adds to site-packages: the commands, and below `_packages` the packages that they run."""
