"""13xx: what can be wrong with an engine.tar or an engine directory."""
