"""The entry point by which Hypothesis learns of our source of chance, as it learns of Trio's."""

from __future__ import annotations

from hypothesis import register_random

from trio_orchestrator.algorithms.chance import CHANCE


def seed_chance() -> None:
    """Let Hypothesis seed the library's `Random` for every example, so that a failing example fails again."""
    register_random(CHANCE)
