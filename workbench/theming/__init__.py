"""Colours, fonts, icons and style sheets."""
