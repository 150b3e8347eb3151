"""Integrations with other libraries, one module for each. Users import the ones they need."""
