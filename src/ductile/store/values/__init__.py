"""What is said to the store and what it answers: plain values, no rows and no connections."""
