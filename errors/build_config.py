"""12xx: what can be wrong with a build config and with what it points to."""
