"""TrainJobs of Kubeflow Trainer (trainer.kubeflow.org). Their controller makes a JobSet from each."""
