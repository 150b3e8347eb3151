"""Everything that is known to take noise back out, one file for each family."""
