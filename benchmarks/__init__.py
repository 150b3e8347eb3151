"""Benchmarks of speed and memory, compared with other libraries: `make bench`."""
