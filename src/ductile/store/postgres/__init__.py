"""The store on PostgreSQL, for several machines with one queue."""
