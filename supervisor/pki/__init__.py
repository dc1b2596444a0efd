"""The supervisors' own PKI: a CA and a token key in a Secret that the first supervisor creates, and certificates."""
