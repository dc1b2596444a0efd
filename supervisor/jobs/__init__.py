"""One adapter for each kind of job: carries a decision's actions out, each as often as it is asked to."""
