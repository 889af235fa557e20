"""One simulated job: `python -m tests.lab.simulate P17 --seed 3 --ranks 64 --out DIR` prints the truth, writes a recording."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from slurm_ncclmon.recording import Recorder
from slurm_ncclmon.start import Start, write_start
from tests.lab.simulate.cases import CASES, SIZES, build
from tests.lab.simulate.job import TIERS
from tests.lab.simulate.play import play, settings_of
from tests.lab.simulate.score import rank_of, score


def main() -> None:
    """Build, play, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.simulate", description=__doc__)
    parser.add_argument("case", nargs="?", help="drawn from the seed when left out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="draw so many ranks at most")
    parser.add_argument("--tier", choices=TIERS, help="what evidence there is besides RAS")
    parser.add_argument("--out", type=Path, help="write a recording for `ncclmon replay` there, and truth.json")
    parser.add_argument("--list", action="store_true", help="name the cases")
    asked = parser.parse_args()
    if asked.list:
        for case in CASES.values():
            print(f"{case.name:5s}{'hang  ' if case.hang else 'silent'}  {case.what}")
        return
    job = build(asked.seed, asked.case, asked.ranks, asked.tier, asked.most)
    print(
        json.dumps(
            {
                **job.truth.to_json(),
                "layout": str(job.layout),
                "tier": job.tier,
                "interval": job.interval,
                "version": job.version,
            },
            indent=1,
        )
    )
    recorder = Recorder(asked.out) if asked.out else None
    if asked.out:
        write_start(asked.out, Start(f"{job.seed}.0", settings_of(job), job.wall(0.0)))
    played = play(job, text=recorder is not None, record=recorder.write if recorder else lambda seen: None)
    for event in played.events:
        verdict = getattr(event, "verdict", None)
        said = (
            ""
            if verdict is None
            else (
                f"{verdict.cls} {verdict.kind} {sorted(rank_of(job, culprit) for culprit in verdict.culprits)}"
                f" confidence {verdict.confidence} frozen {verdict.frozen_for_s:.0f} s"
            )
        )
        print(f"{event.t_s:9.1f} {type(event).__name__} {said}")
    for verdict in played.verdicts:
        print(json.dumps(verdict.to_json(), indent=1)[:4000])
    print(score(job, played))
    if recorder and asked.out:
        recorder.close()
        (asked.out / "truth.json").write_text(json.dumps(job.truth.to_json(), indent=1) + "\n")
        print(f"ncclmon replay {asked.out}")


if __name__ == "__main__":
    main()
