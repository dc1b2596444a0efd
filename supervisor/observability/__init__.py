"""What people see of it."""
