"""The state keeper: keeps the state of stopped jobs in the memory of this host until they resume, or for some time."""
