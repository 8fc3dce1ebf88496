"""Dialogs: messages, files, exports, reports."""
