"""The command `midstream profile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def profile(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured times, after one to warm up.")] = 3,
) -> None:
    """Measure how long steps and moves of KV take with this model on this device, and keep the fit."""
    from bench import profile as bench
    from engine.interception.profile import ProfileError
    from engine.model.loader import ModelError

    console = Console()
    try:
        report, path = bench.run(repeats, Console(stderr=True).print)
    except (ModelError, ProfileError) as problem:
        Console(stderr=True).print(str(problem), style="bold red", markup=False)
        raise typer.Exit(1) from None
    if json_file is not None:
        json_file.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    fitted = report.profile
    steps = Table("tokens", "context", "ms", "fit", title=fitted.name, box=SIMPLE_HEAD)
    for step in report.steps:
        predicted = fitted.forward_s(step.query_tokens, step.context_tokens)
        steps.add_row(
            str(step.query_tokens), str(step.context_tokens), f"{step.seconds * 1000:.2f}", f"{predicted * 1000:.2f}"
        )
    console.print(steps)
    link = "modelled" if report.modelled_link else "real"
    console.print(f"mean error {report.error:.1%}; S = {fitted.saturation_tokens} tokens")
    console.print(f"T_swap = {fitted.swap_s(1000) * 1000:.2f} ms for 1,000 tokens; the link is {link}")
    even = Table("decodes", "their tokens", "keep 1,000 tokens up to", box=SIMPLE_HEAD)
    for one in report.break_even_s:
        even.add_row(f"{one['queries']:.0f}", f"{one['others']:.0f}", f"{one['seconds']:.2f} s")
    console.print(even)
    console.print(f"kept in {path}", soft_wrap=True)
