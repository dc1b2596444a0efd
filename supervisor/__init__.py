"""The central service: facts in, one decision per job, directives and host lists out."""
