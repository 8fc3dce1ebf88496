"""What looks into an arm, in steps that nobody times: one collector per file."""
