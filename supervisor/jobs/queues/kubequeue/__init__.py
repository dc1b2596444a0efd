"""KubeQueue and its successor koord-queue (scheduling.x-k8s.io): annotations on the jobs that they hold back."""
