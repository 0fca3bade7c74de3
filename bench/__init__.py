"""Measurements, run by `make bench-…`; what they find goes to bench/out as JSON."""
