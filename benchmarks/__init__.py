"""Benchmarks of the workbench against peers, each a registered function: `python -m benchmarks [NAME ..]`."""
