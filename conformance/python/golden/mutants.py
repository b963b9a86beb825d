# SPDX-License-Identifier: Apache-2.0
"""Names that `kills` may use: those of conformance/mutants/mutants.def."""

import re
from pathlib import Path

_LIST = Path(__file__).resolve().parents[2] / "mutants" / "mutants.def"
MUTANTS = set(re.findall(r'^X\(\w+, "([a-z0-9-]+)"', _LIST.read_text("utf-8"), re.M))
