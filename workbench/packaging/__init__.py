"""Code that runs when a distribution is built, and never in the application."""
