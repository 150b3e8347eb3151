"""What every other package stands on: errors, randomness, arrays, threads and exact arithmetic."""
