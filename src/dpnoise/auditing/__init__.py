"""What can be proved against an implementation of noise."""
