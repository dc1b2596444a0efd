"""What the scenarios stand on: a supervisor, its peers, and how both are measured."""
