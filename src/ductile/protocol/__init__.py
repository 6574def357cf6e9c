"""Byte formats: what is read from and written to files, pipes and sockets, decoded strictly."""
