"""The commands around a training job: kubeai-run and kubeai-discover-hosts."""
