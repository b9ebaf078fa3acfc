"""The command `midstream simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def simulate(
    setting: Annotated[str, typer.Option(help="vicuna-13b, gptj-6b or h200-8b.")] = "vicuna-13b",
    policy: Annotated[str, typer.Option(help="Comma separated.")] = "ours",
    rate: Annotated[str, typer.Option(help="Requests a second, comma separated.")] = "2",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    trace: Annotated[Path | None, typer.Option(help="JSON lines; without, InferCept's mixed workload.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Of arrivals.")] = 1800.0,
    seed: Annotated[int, typer.Option()] = 1,
    kv_tokens: Annotated[int | None, typer.Option(min=64, help="KV pool; without, that of the setting.")] = None,
    prefix_cache: Annotated[bool, typer.Option(help="Keep KV that nobody holds while there is room.")] = False,
) -> None:
    """Run the scheduler under a policy for tool calls on a simulated GPU: half an hour in seconds."""
    from bench.interception import simulate as bench
    from bench.interception.simulator import TooLong
    from bench.interception.table import table_of
    from bench.interception.workload import DEFAULT_TRACE, TraceError

    console = Console()
    try:
        options = bench.Options(
            setting=setting,
            policies=policy.split(","),
            rates=[float(one) for one in rate.split(",")],
            trace=trace or DEFAULT_TRACE,
            seconds=seconds,
            seed=seed,
            kv_tokens=kv_tokens,
            prefix_cache=prefix_cache,
        )
        runs = bench.run(options, Console(stderr=True).print)
    except (ValueError, TraceError, TooLong) as error:
        raise typer.BadParameter(str(error)) from None
    if json_file is not None:
        json_file.write_text(json.dumps(runs, indent=2) + "\n")
    console.print(table_of(runs, f"{setting}, simulated; {seconds:g} s of arrivals"))
