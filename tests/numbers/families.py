"""All ways of cutting the work, with all families, on both paths: ``python -m tests.numbers.families [NAME...]``.

Prints for each the largest difference of a logit from transformers, and how often what happened. Takes minutes. Ends
with status 1 if a token or a logit was not the reference's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import transformers

from tests.engine.families import FAMILIES
from tests.engine.ways import WAYS, check_way, make_subject


def main(names: list[str]) -> int:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wrong = 0
    print(f"{'family':40} {'path':6}  ways  logits  largest preempted hit tokens seconds")
    for name, family in FAMILIES.items():
        if names and not any(part in name for part in names):
            continue
        for path in ("auto", "torch") if family.plain else ("torch",):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                runner, reference = make_subject(family, Path(folder), path)
                outcomes = []
                for way in WAYS:
                    try:
                        outcomes.append(check_way(runner, reference, way))
                    except AssertionError as error:
                        wrong += 1
                        print(f"  WRONG {name}, {path}, {way}: {error}")
                print(
                    f"{name:40} {'fused' if path == 'auto' else path:6} {len(outcomes):>5} "
                    f"{sum(o.logits for o in outcomes):>7,} {max(o.error for o in outcomes):>8.1e} "
                    f"{sum(o.preemptions for o in outcomes):>9,} {sum(o.hit_tokens for o in outcomes):>10,} "
                    f"{time.perf_counter() - start:>7.1f}",
                    flush=True,
                )
    print(f"{wrong} of them wrong" if wrong else "All the same as transformers.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
