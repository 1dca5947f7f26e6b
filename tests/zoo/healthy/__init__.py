"""Architectures that train well in 16 bits, by field."""
