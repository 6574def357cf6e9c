"""What each verb of the store means, once, over named queries. Adapters call these inside a transaction."""
