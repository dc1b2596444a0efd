"""What it costs and how fast it is: real processes on one machine, measured side by side in one run."""
