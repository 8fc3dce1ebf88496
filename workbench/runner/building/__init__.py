"""Variants are built, stored and named; toggles find evidence of their effects in them."""
