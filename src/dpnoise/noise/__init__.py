"""The paper's samplers: distributions, the forms that draw them, and what inverting one costs."""
