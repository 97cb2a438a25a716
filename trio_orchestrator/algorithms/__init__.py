"""Pure rules: no Trio, no clock, no I/O. `now` and `rng` are arguments."""
