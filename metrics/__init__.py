"""What is measured: the instruments in one table, and the arithmetic of times as pure functions. Imports no sibling."""
