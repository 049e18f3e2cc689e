"""A stand-in for the compiled bindings; here is ``executor`` alone."""
