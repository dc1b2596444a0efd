"""TFJobs of training-operator (kubeflow.org/v1)."""
