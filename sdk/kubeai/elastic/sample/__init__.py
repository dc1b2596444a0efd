"""A small job to try the supervisor with: ``launcher`` starts one ``training`` process on each host of this machine.

It needs no framework. A linear model is trained with real gradients on synthetic data, in data parallel: the launcher
holds the parameters, every process computes the gradient of its own batch, and rank 0 saves and loads the checkpoint.
"""
