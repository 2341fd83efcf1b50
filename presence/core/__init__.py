"""The synchronous core: session registry, timing wheel and the server's side of the protocol.

No sockets, no tasks and no clock of its own: time is an argument or comes from the `Clock` that is passed in.
"""
