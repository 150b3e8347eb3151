"""Exact release: mechanisms whose output is the ideal real-number mechanism's, rounded once."""
