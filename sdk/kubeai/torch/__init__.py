"""Training that goes on in process when the hosts of a torchrun job change: `kubeai.torch.training`.

Training scripts import it. `decisions` does without torch.
"""
