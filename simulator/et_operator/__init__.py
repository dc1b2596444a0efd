"""A stand-in for et-operator, which runs TrainingJobs on a cluster. It contains none of the operator's code.

It behaves as the real one was observed to behave, races and bugs included, as far as other components can tell.
docs/maintainers/et-operator.md says what it reproduces and what it does not.
"""
