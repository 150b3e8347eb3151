"""Helpers of several test files: reference implementations, data sets, statistical checks."""
