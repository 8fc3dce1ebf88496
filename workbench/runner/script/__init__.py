"""The process that watches a training script: no torch, and nothing in the script's own process."""
