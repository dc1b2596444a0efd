"""Trains on in the same processes when the hosts of a torchrun job change. `kubeai.torch.training` has the loop.

Training scripts import it. `decisions` does without torch.
"""
