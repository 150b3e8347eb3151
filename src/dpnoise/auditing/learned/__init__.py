"""Events that an audit learns from outputs of any kind."""
