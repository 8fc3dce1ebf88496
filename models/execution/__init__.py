"""Execution of layers: checkpointing, compilation, CUDA graphs."""
