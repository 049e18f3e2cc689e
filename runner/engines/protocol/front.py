"""Parameters of Triton requests by which the front and the slot work together.

Triton passes the parameters of a request on to the steps of an ensemble, but not its cancellation.
"""

CALL = "cog_triton_call"
"""The front's call that a request belongs to: the front's name, a colon, a number."""
STOPPED_CALL = "cog_triton_stop"
"""Cancel the requests of this call."""
ONLY_FRONT = "cog_triton_only_front"
"""Cancel the requests of all fronts but this one: they have ended."""
SINGLE_RESPONSE = "cog_triton_single_response"
"""Send all outputs in one response, as with ``decoupled_mode: false``."""
