"""Where things lie."""

import os
import pathlib

ROOT = pathlib.Path(os.environ.get("POCKET_ROOT", pathlib.Path(__file__).resolve().parent.parent))
MODEL = ROOT / "models" / "pocket"
EMBEDDER = ROOT / "models" / "pocket-embed"
FIXTURES = ROOT / "tests" / "fixtures" / "pocket"
WORK = pathlib.Path(os.environ.get("POCKET_WORK", ROOT / "target" / "pocket"))
SEED = 20260
