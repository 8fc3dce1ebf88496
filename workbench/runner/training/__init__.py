"""Weights and the optimizers that train them."""
