"""What is counted and measured for Prometheus."""
