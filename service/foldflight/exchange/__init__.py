"""The exchange without I/O: frames, their encoding, the table of transitions, and both ends of one exchange.

An exchange is the conversation of a task with one server about the rows of its groups; it is no shuffle. The server's
end (`server_exchange`) calls the fold, in a server as well as embedded.
"""
