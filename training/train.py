#!/usr/bin/env python3
"""Makes models/pocket and models/pocket-embed: `train.py all`, or stage by stage; see README.md."""

import argparse
import time

from project import SEED

STAGES = ["tokenizer", "data", "train", "export", "evaluate", "embed", "card", "golden"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="+", choices=["all", *STAGES])
    parser.add_argument("--texts", type=int, default=160_000, help="conversations and passages of text")
    parser.add_argument("--pictures", type=int, default=48_000)
    parser.add_argument("--recordings", type=int, default=24_000)
    parser.add_argument("--seed", type=int, default=SEED, help="of the data")
    parser.add_argument("--rows", type=int, nargs=3, default=[64, 128, 32], help="of text, pictures and speech in a batch")
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--seconds", type=float, default=0, help="train this long in all, instead of --steps")
    parser.add_argument("--piece", type=float, default=0, help="end after so many seconds, to be resumed")
    parser.add_argument("--resume", action="store_true", help="go on with the training from state.pt")
    parser.add_argument("--last", action="store_true", help="let the schedule end with this piece")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--embed-steps", type=int, default=1_500)
    parser.add_argument("--embed-seconds", type=float, default=0)
    parser.add_argument("--embed-pairs", type=int, default=50_000)
    parser.add_argument("--embed-rows", type=int, default=512)
    parser.add_argument("--sentences", type=int, default=1_000, help="among which a paraphrase is looked for")
    return parser.parse_args()


def run(stage, options):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if stage == "tokenizer":
        import data

        data.make_tokenizer()
    elif stage == "data":
        import data

        data.make(options.texts, options.pictures, options.recordings, options.seed)
    elif stage == "train":
        import fit

        fit.train(
            options.steps, options.seconds, options.piece, options.resume, options.last, options.rows, options.rate, device
        )  # fmt: skip
    elif stage == "export":
        import export

        export.export()
    elif stage == "evaluate":
        import data
        import evaluate

        evaluate.evaluate(options.held_out, device, data.trained_conversations(options.texts, options.seed))
    elif stage == "embed":
        import embed

        embed.train(options.embed_steps, options.embed_seconds, options.embed_rows, options.embed_pairs, 1e-3, device)
        embed.export_embedder()
        embed.evaluate(options.sentences, device)
    elif stage == "card":
        import card

        card.write()
    else:
        import golden

        golden.write()


if __name__ == "__main__":
    options = arguments()
    for stage in STAGES if "all" in options.stages else options.stages:
        began = time.time()
        run(stage, options)
        print(f"— {stage}: {time.time() - began:.0f} s", flush=True)
