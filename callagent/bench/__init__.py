"""The performance figures of a machine, measured from outside of the server."""
