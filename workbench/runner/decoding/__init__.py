"""Decoding: rounds of steps, saved decode states, generated text."""
