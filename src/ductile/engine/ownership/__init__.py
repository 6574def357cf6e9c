"""Which process owns a store and its jobs: the store lock, process identities, orphaned plugin processes."""
