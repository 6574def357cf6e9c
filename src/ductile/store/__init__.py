"""The store: everything durable, behind one port.

`port` is the interface to the rest of the program, `model` its values, `notifier` its changes. `verbs`
holds the meaning of each verb, written once over named queries (`queries`); an adapter (`sqlite`, `postgres`)
provides sessions and commits, and overrides queries that need its dialect. The contract suite in
`tests/contract/store` defines the port.
"""
