"""Proof of a rule library: the meaning of every e-node in numbers, random programs, examples, lint."""
