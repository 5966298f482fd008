"""Times what a run costs above the layer itself: `python overhead.py`.

The layer has one multiply-add, which takes convoke itself about 0.1 microseconds (`cargo bench --bench overhead` times
runs in Rust). What is left is the way from Python and back.
"""

import argparse
import timeit

import convoke
import numpy as np


def main():
    parser = argparse.ArgumentParser(description="Times what a run costs above the layer itself.")
    parser.add_argument("--calls", type=int, default=20000, help="calls that are timed together")
    parser.add_argument("--repeat", type=int, default=15, help="times that they are, of which the shortest counts")
    options = parser.parse_args()
    plan = convoke.Planner().conv([1, 1, 1, 1], [1, 1, 1, 1])
    packed, x, y = plan.pack(np.ones([1, 1, 1, 1], np.float32)), np.ones([1, 1, 1, 1], np.float32), np.zeros([1, 1, 1, 1], np.float32)
    calls = {
        "run(x, packed)": lambda: plan.run(x, packed),
        "run(x, packed, out=y)": lambda: plan.run(x, packed, out=y),
        "run(x, packed, residual=y, out=y)": lambda: plan.run(x, packed, residual=y, out=y),
        "numpy.add(x, x, out=y), to compare": lambda: np.add(x, x, out=y),
    }
    for name, call in calls.items():
        seconds = min(timeit.repeat(call, number=options.calls, repeat=options.repeat)) / options.calls
        print(f"{name:<36} {seconds * 1e6:6.2f} us")


if __name__ == "__main__":
    main()
