"""The commands that stand around a training job: kubeai-run and kubeai-discover-hosts."""
