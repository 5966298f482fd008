"""python -m convoke_onnxruntime model.onnx: times a model in onnxruntime with and without convoke."""

import argparse
import sys

from . import compare, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m convoke_onnxruntime", description="Time a model in onnxruntime with and without convoke, with random inputs, and print a table.")
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument("--threads", type=int, nargs="+", metavar="N", help="numbers of threads (default: one, and all cores)")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="a size that the model leaves open; that of a first axis is 1 by default")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each side runs on each number of threads (default: 2)")
    parser.add_argument("--layers", type=int, nargs="?", const=15, default=0, metavar="N", help="also the N slowest nodes of both sides (default: 15)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the provider, as isa=avx2")
    chosen = parser.parse_args()
    try:
        dims = {name: int(size) for name, size in map(_pair, chosen.dim)}
        options = dict(map(_pair, chosen.option))
        found = compare(chosen.model, threads=chosen.threads, dims=dims, seconds=chosen.seconds, layers=chosen.layers > 0, **options)
    except Exception as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table(found, chosen.layers))
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
