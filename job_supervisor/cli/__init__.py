"""The command `job-supervisor`: shows the state of jobs, steers them, and runs fire drills."""
