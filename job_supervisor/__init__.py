"""The clients of the service: the command `job-supervisor`, and `elastic-job-supervisor dev`."""
