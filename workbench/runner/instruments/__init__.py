"""Instruments that watch a running step: time, memory, telemetry, phases."""
