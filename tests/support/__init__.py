"""What several test files use: reference implementations, data sets, and statistical checks."""
