"""A stand-in for what runs on a cluster's nodes, because kwok's nodes run no containers.

Pods of TrainingJobs are processes of this machine: a launcher pod runs its real command, with an elastic launcher as
`horovodrun`, and a worker pod is a host on which that launcher starts a training process. It is not a kubelet.
"""
