"""The store: everything durable, behind one port.

`port` is what the rest of the program sees, `values` what it says and hears. `verbs` holds what each
verb means, written once over named queries; an adapter (`sqlite`) brings the queries in its dialect, the
connections and the commit. The contract suite in `tests/contract` is the port's definition: an adapter
is whatever passes it.
"""
