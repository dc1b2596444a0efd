"""Training that goes on in process when the hosts of a torchrun job change: `kubeai.torch.training`.

Training scripts import it. `data_order`, `decisions` and `round_file` do without torch.
"""
