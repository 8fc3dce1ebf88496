"""Models of people's files and of libraries: loaded, called and explained where they fail."""
