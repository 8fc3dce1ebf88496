"""Actions, menus and the command palette."""
