"""A stand-in for what runs on a cluster's nodes, where these are kwok's, which run no container.

Pods of TrainingJobs are processes of this machine: a launcher pod runs its real command, with an elastic launcher for
`horovodrun`, and a worker pod is a host on which that launcher starts a training process. It is no kubelet.
"""
