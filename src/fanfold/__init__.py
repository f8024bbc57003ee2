"""Fan out agents, fold the log."""
