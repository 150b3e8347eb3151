"""Speed and memory, side by side with the peers: `make bench`."""
