"""The command `job-supervisor`: shows the state of jobs, and runs fire drills."""
