"""The models of the window: what it knows, without a widget; each announces its changes."""
