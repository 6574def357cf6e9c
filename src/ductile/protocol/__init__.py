"""Byte formats of files, pipes and sockets. They are decoded strictly."""
