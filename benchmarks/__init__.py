"""Benchmarks of orbax_gds beside its peers: `python -m benchmarks.run`."""
