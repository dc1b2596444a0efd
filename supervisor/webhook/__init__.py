"""What an opted-in pod is given when it is made: who it is, where the supervisor is, and which nodes it is to avoid."""
