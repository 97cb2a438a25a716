"""Simulations with published figures, as functions that return data; `EXPECTED` is what they have to come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

EXPECTED: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("expected.json").read_text(encoding="utf-8"))
