"""`ductile job …`"""
