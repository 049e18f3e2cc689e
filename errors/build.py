"""23xx: failures while an engine is built."""
