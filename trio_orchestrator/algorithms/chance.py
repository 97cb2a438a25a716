"""The one source of chance: jitter, never identity.

A `Random` that Hypothesis seeds (`testing.plugin`, through an entry point) and that a forked child re-seeds. Whatever
must be *unique* comes from `secrets` instead: seeded, a `Random` repeats.
"""

from __future__ import annotations

import os
from random import Random

CHANCE = Random()
"""The default of every `rng=` parameter."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CHANCE.seed)
