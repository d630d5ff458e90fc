"""What it costs, measured on the embedded servers: `make bench` writes RESULTS.md."""
