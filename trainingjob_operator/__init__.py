"""A controller for TrainingJobs, ScaleIns and ScaleOuts of `kai.alibabacloud.com`.

It runs elastic Horovod jobs with a launcher and workers, in the place of et-operator and for the same resources.
`reconcile.py` decides, without I/O, from what `api.py` reads and into what `manifests.py` writes; `controller.py` keeps
the caches and carries the changes out.
"""
