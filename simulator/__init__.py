"""Simulates a cloud, a launcher and a training job on one machine, and judges what the product did."""
