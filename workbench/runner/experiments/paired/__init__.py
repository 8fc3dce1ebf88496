"""Paired measurement: blocks of two configurations that alternate, pairs, rebuilds, energy."""
