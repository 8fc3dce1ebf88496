"""Series of samples that grow: tracks of columns, derived sources, min/max pyramids."""
