"""The command line's commands, one file each; the folder is the registry."""
