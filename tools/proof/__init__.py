"""The machine-checked proof of exact release: `make proof`. See docs/exact-release-proof.md."""
