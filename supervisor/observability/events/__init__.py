"""Kubernetes Events: what was noticed and decided, said on the objects that it is about, for those who look at them."""
