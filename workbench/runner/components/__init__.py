"""Components of the bundled families as separate models, in files that a run can name."""
