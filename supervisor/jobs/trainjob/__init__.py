"""TrainJobs of Kubeflow Trainer (trainer.kubeflow.org), of each of which its controller makes a JobSet."""
