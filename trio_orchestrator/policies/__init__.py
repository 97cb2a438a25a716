"""What surrounds one call: retry, time-out, what counts as a failure."""
