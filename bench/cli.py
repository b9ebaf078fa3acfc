"""`midstream bench …`: one command per benchmark, each with a `--json` file of its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Measure this machine; every figure in the README comes from here.")

Json = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]


@app.callback()
def group() -> None:
    """Keeps `realtime` a subcommand while it is the only one."""


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
