"""Session files: written whole, checked before they are read."""
