"""Takes in the facts that the API server has: Events, and conditions of pods and nodes."""
