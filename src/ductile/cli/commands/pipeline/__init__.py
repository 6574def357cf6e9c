"""`ductile pipeline …`"""
