"""The central service: it takes facts, makes one decision per job, and sends directives and host lists."""
