"""What each operation does to the state: one module for each, with the one of the same name in ``validation``.

``act(state, request)`` takes what ``validate`` returned, runs under the engine's lock, and returns the response
message, or its bytes where building the message would cost more.
"""
