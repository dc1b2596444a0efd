"""The mutating webhook: gives new opted-in pods a token, the supervisor's address and the nodes to avoid."""
