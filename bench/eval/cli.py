"""The command `midstream eval`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from bench.eval.log import Outcome
    from bench.eval.run import Options
    from bench.eval.summary import Run

_STRATEGIES = "off-cot,off-direct,prefill,draft,notes"


def evaluate(
    dataset: Annotated[Path, typer.Option(help="JSON lines: GSM8K, MMLU or MMLU-Pro questions.")],
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many questions; without, all.")] = None,
    cpm: Annotated[float, typer.Option(min=1, help="Characters typed a minute; 600 for speech.")] = 240.0,
    strategies: Annotated[
        str, typer.Option(help="Comma separated; also off-notes, notes-cot, prefill-direct, auto.")
    ] = _STRATEGIES,
    layout: Annotated[str, typer.Option(help="Of notes, comma separated; empty leaves it to the server.")] = "",
    granularity: Annotated[str, typer.Option(help="Of notes, comma separated; empty leaves it to the server.")] = "",
    json_file: Annotated[Path, typer.Option("--json", help="Write the runs to this file.")] = Path("eval.json"),
    log: Annotated[Path | None, typer.Option(help="Answers, one a line, and where to go on.  [<json>.jsonl]")] = None,
    html: Annotated[Path | None, typer.Option(help="The report.  [<json>.html]")] = None,
    typing: Annotated[str, typer.Option(help="constant, realistic or speech.")] = "constant",
    seed: Annotated[int, typer.Option(help="Of the typing.")] = 1,
    realtime: Annotated[bool, typer.Option(help="Type in real time instead of on the virtual clock.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 400,
    model: Annotated[str, typer.Option(help="For the server that is started; empty: the default.")] = "",
    kv_tokens: Annotated[int, typer.Option(min=256, help="KV pool of that server; small, so that it forgets.")] = 3072,
    url: Annotated[str, typer.Option(help="A running server; empty starts one.")] = "",
) -> None:
    """Accuracy and waiting time of answers under each strategy, on typed questions with known answers."""
    from bench.eval import run as bench
    from bench.eval.questions import DatasetError, load
    from bench.eval.variants import variants

    if typing not in ("constant", "realistic", "speech"):
        raise typer.BadParameter(f"no typing {typing!r}; there are constant, realistic, speech")
    try:
        options = bench.Options(
            load(dataset, limit),
            variants(_names(strategies), _names(layout), _names(granularity)),
            dataset=dataset.stem,
            cpm=cpm,
            typing=typing,  # type: ignore[arg-type]
            seed=seed,
            realtime=realtime,
            max_tokens=max_tokens,
            url=url.rstrip("/"),
            model=model,
            kv_tokens=kv_tokens,
        )
    except (DatasetError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    _run(options, json_file, log or json_file.with_suffix(".jsonl"), html or json_file.with_suffix(".html"))


def _run(options: Options, json_file: Path, log: Path, html: Path) -> None:
    from bench.eval import run as bench
    from bench.eval.report import page
    from bench.eval.summary import summarise

    total = len(options.questions) * len(options.variants)
    with _progress() as progress:
        outcomes, settings = bench.run(options, log, _reporter(progress, total))
    runs = summarise(outcomes, settings)
    json_file.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")
    html.write_text(page(runs, outcomes), encoding="utf-8")
    Console().print(_table(runs))


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True))


def _reporter(progress: Progress, total: int) -> Callable[[Outcome | None], None]:
    task = progress.add_task("questions", total=total)

    def report(outcome: Outcome | None) -> None:
        progress.advance(task)
        if outcome is not None and outcome.error is not None:
            progress.console.print(f"{outcome.question}, {outcome.variant.label}: {outcome.error}", markup=False)

    return report


def _table(runs: list[Run]) -> Table:
    from bench.eval.report import shown

    columns = {
        "questions": "questions",
        "accuracy": "accuracy",
        "latency_p50_s": "p50 s",
        "latency_p90_s": "p90 s",
        "ttft_p50_s": "TTFT p50",
        "notes_per_question": "notes",
        "reused_share": "reused",
        "fresh_tokens_at_send_p50": "fresh",
    }
    table = Table("", *columns.values(), "speed-up", "p", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for run in runs:
        against = run.get("against", {})
        cells = [shown(run[name]) for name in columns]
        table.add_row(run["label"], *cells, shown(against.get("speedup_p50")), shown(against.get("mcnemar_p")))
    return table
