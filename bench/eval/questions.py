"""Question files: GSM8K, MMLU and MMLU-Pro, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LETTERS = "ABCDEFGHIJKLMNOP"


class DatasetError(Exception):
    """The file is not one of the known kinds."""


@dataclass(frozen=True)
class Question:
    """`text` is typed; `options` (of multiple choice, else none) appear with its last character. `answer` is a letter
    or a number."""

    id: str
    text: str
    options: Sequence[str]
    answer: str
    subject: str = ""

    @property
    def choices(self) -> str:
        """The letters to choose from; empty when the answer is a number."""
        return LETTERS[: len(self.options)]

    @property
    def options_text(self) -> str:
        lines = [f"({letter}) {option}" for letter, option in zip(LETTERS, self.options, strict=False)]
        return "\n\nOptions:\n" + "\n".join(lines) if lines else ""


def load(file: Path, limit: int | None = None) -> list[Question]:
    """The first `limit` questions. Raises `DatasetError`."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        questions = [_question(json.loads(line), number) for number, line in enumerate(lines[:limit], 1)]
    except (OSError, ValueError) as error:
        raise DatasetError(f"{file}: {error}") from None
    except (KeyError, TypeError, IndexError) as error:
        raise DatasetError(f"{file}: not a question file ({error!r})") from None
    if not questions:
        raise DatasetError(f"{file}: no questions")
    return questions


def _question(row: dict[str, Any], number: int) -> Question:
    options = row.get("choices") or row.get("options") or []
    answer = str(row["answer"])
    if not options:
        # GSM8K: the worked solution, and the number behind "####".
        answer = answer.rpartition("####")[2].strip().replace(",", "")
    elif answer not in LETTERS[: len(options)]:
        answer = LETTERS[int(row["answer_index"])]
    return Question(
        id=str(row.get("id") or row.get("question_id") or number),
        text=row["question"].strip(),
        options=tuple(str(option) for option in options),
        answer=answer,
        subject=str(row.get("subject") or row.get("category") or ""),
    )
