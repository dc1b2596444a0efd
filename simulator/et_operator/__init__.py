"""A stand-in for et-operator, which runs TrainingJobs on a cluster: not the operator, and no code of it.

It behaves as the real one was observed to behave, races and bugs included, as far as something beside it can tell;
docs/maintainers/et-operator.md says what it reproduces and what not.
"""
