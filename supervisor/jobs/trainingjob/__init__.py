"""TrainingJobs of et-operator, which is left as it is: what is seen of them, and what is done to them."""
