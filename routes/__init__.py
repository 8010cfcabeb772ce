"""Turns HTTP into calls on the engine, and the engine's deltas into bytes."""
