"""Measures MLX-LM for `lily bench --peer mlx-lm`: its own generation loop, greedy, one sequence, no server.

Reads what to measure from stdin and prints what was measured, both JSON. A length is timed as MLX-LM counts it: prefill
until the first token is there, decode from one token to the next.
"""

import json
import platform
import resource
import sys
import time
from pathlib import Path

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import generate_step, generation_stream, wired_limit
from mlx_lm.utils import load_model


def generate(model, tokens, count):
    """The first `count` tokens after these, and when each was there, in seconds after the start."""
    prompt = mx.array(tokens)
    mx.eval(prompt)
    generated, times = [], []
    start = time.perf_counter()
    for token, _ in generate_step(prompt, model, max_tokens=count):
        times.append(time.perf_counter() - start)
        generated.append(int(token))
    return generated, times


def warm_up(model, spec, length):
    generate(model, spec["tokens"][: length["warm_up"]], 1 + spec["warm_steps"])


def measure(model, spec, length):
    tokens = spec["tokens"][: length["tokens"]]
    warm, steps = spec["warm_steps"], spec["decode"]
    warm_up(model, spec, length)
    result = {"tokens": len(tokens), "prefill": [], "decode": [], "generated": []}
    start, runs = time.perf_counter(), 0
    while runs < spec["reps"] or time.perf_counter() - start < spec["figure_seconds"]:
        runs += 1
        # The first steps at a length may compile; they are left out.
        generated, times = generate(model, tokens, 1 + (warm + steps if length["decode"] else 0))
        if length["prefill"]:
            result["prefill"].append(len(tokens) / times[0])
        if length["decode"]:
            result["decode"].append(steps / (times[warm + steps] - times[warm]))
            result["generated"].append(generated[:steps])
    return result


def main():
    spec = json.load(sys.stdin)
    start = time.perf_counter()
    model, _ = load_model(Path(spec["model"]))
    load_seconds = time.perf_counter() - start
    with wired_limit(model, [generation_stream]):
        start = time.perf_counter()
        while time.perf_counter() - start < spec["warm_seconds"]:
            warm_up(model, spec, spec["lengths"][0])
        lengths = [measure(model, spec, length) for length in spec["lengths"]]
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    answer = {
        "versions": {"mlx-lm": mlx_lm.__version__, "mlx": mx.__version__, "python": platform.python_version()},
        "device": str(mx.default_device()),
        "load_seconds": load_seconds,
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        "device_bytes": mx.get_peak_memory(),
        "lengths": lengths,
    }
    print(json.dumps(answer))


main()
