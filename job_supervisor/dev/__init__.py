"""`elastic-job-supervisor dev`: a supervisor, node agents and a job on one machine, to try it out."""
