"""A cloud, a launcher and a training job on one machine, and the judge of what they did."""
