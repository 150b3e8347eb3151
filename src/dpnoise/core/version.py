"""The version of dpnoise, which records of releases name."""

__version__ = "0.2.0"
