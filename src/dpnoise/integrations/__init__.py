"""One small file for each ecosystem. Nobody imports them: they are there for who asks."""
