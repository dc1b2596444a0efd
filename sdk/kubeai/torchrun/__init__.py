"""The rendezvous backend `kubeai` of torchrun: the supervisor decides which hosts are members of a job.

    torchrun --rdzv-backend=kubeai --rdzv-id=JOB --nnodes=MIN:MAX ... train.py

This package runs in the elastic agents (`torchrun`), one for each host. Training scripts need nothing of it. Only
`handler` and `stores` import torch.
"""
