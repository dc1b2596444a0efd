"""The command `job-supervisor`: for people who want to know what is happening to their jobs and why, and for drills."""
