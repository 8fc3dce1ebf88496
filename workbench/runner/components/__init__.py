"""Components of the bundled families as models of their own, in files that a run can name."""
