"""A small elastic launcher and its worker library: a model of Horovod elastic on one machine."""
