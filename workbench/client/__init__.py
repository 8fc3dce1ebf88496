"""The client side of the runner: its process, what it sends, and the journal."""
