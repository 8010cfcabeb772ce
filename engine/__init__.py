"""Owns the model: what runs it, what state the process is in, and which requests are in flight. Knows no HTTP."""
