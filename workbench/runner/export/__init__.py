"""Export of a model to other formats."""
