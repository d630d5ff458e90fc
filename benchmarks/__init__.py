"""Benchmarks on the embedded servers and Debian's: `make bench` writes RESULTS.md."""
