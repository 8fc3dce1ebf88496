"""Attribution: which toggle gave what, from arms that ran in interleaved rounds."""
