"""What the library costs, against what one would write by hand: ``python -m benchmarks queue`` and ``retry``."""
