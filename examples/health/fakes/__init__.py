"""Local servers that speak the wire format of real services, for tests and for trying the example.

    python3 -m fakes.withings --port 9101      # in examples/health

They keep everything in memory, accept every user, and are for one machine: do not offer them to a network.
"""
