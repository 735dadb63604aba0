"""Text as requests: files, tokenised by bytes, cut into prompts and what follows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

# Tokens 0 to 255 are the bytes; this one begins a request.
BEGIN_TOKEN = 256

# How long a request is, in bytes; uniform between the two, bounds included.
PROMPT_BYTES = (32, 767)
COMPLETION_BYTES = (16, 256)

# The columns of a request's sampling parameters, as a runner stages them.
SAMPLING_DTYPES: dict[str, np.dtype[np.generic]] = {
    "temperature": np.dtype(np.float32),
    "top_p": np.dtype(np.float32),
    "top_k": np.dtype(np.int32),
    "min_p": np.dtype(np.float32),
    "presence_penalty": np.dtype(np.float32),
    "frequency_penalty": np.dtype(np.float32),
    "repetition_penalty": np.dtype(np.float32),
    "seed": np.dtype(np.int64),
}


@dataclass(frozen=True)
class Document:
    """A text: its name, for people, and its bytes."""

    name: str
    text: bytes


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and its continuation.

    There is no model here: where a runner would sample a token, the next byte of the text
    is taken. So all tokens of a request are known from the start.

    Attributes
    ----------
    number
        Which request of its stream this is, from 0.
    tokens
        All of them, the prompt's first.
    prompt_tokens
        How many of ``tokens`` are the prompt, at least one.
    sampling
        A value for each of ``SAMPLING_DTYPES``.
    """

    number: int
    tokens: npt.NDArray[np.int32]
    prompt_tokens: int
    sampling: dict[str, float | int]


def tokenize(text: bytes) -> npt.NDArray[np.int32]:
    """One token for the beginning, then one for each byte."""
    tokens = np.empty(len(text) + 1, dtype=np.int32)
    tokens[0] = BEGIN_TOKEN
    tokens[1:] = np.frombuffer(text, dtype=np.uint8)
    return tokens


def detokenize(tokens: Iterable[int]) -> str:
    """Text for people: whatever is no UTF-8 becomes a replacement character."""
    return bytes(t for t in tokens if 0 <= t < BEGIN_TOKEN).decode("utf-8", "replace")


def shipped_documents() -> list[Document]:
    """Return the texts that come with the package, in the order of their names."""
    folder = resources.files("staging.demo") / "texts"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".txt")), key=str)
    return [Document(file.name, file.read_bytes()) for file in files]


def read_documents(paths: Sequence[str | Path]) -> list[Document]:
    """Read files of the user's.

    Raises
    ------
    ValueError
        A file is empty.
    OSError
        A file cannot be read.
    """
    documents = [Document(str(path), Path(path).read_bytes()) for path in paths]
    for document in documents:
        if not document.text:
            raise ValueError(f"{document.name} is empty: there is nothing to make a request of")
    return documents


def cut(
    documents: Sequence[Document], *, seed: int, passes: int | None = None
) -> Iterator[Request]:
    """Cut the documents into requests, pass after pass.

    A pass goes through the documents in order and uses each byte once; the lengths are
    drawn anew each time, so no two passes are cut alike.

    Parameters
    ----------
    documents
        At least one, none empty.
    seed
        Of the lengths and the sampling parameters.
    passes
        How often to go through the documents; without end by default.

    Raises
    ------
    ValueError
        There is no document, or an empty one.
    """
    if not documents or not all(document.text for document in documents):
        raise ValueError("documents must be one text or more, none of them empty")
    return _cut(documents, np.random.default_rng(seed), passes)


def _cut(
    documents: Sequence[Document], random: np.random.Generator, passes: int | None
) -> Iterator[Request]:
    number = done = 0
    while passes is None or done < passes:
        for document in documents:
            start = 0
            while start < len(document.text):
                prompt = int(random.integers(*PROMPT_BYTES, endpoint=True))
                completion = int(random.integers(*COMPLETION_BYTES, endpoint=True))
                tokens = tokenize(document.text[start : start + prompt + completion])
                # A short rest of a document keeps at least one byte to continue with.
                prompt_tokens = min(1 + prompt, len(tokens) - 1)
                yield Request(number, tokens, prompt_tokens, _sampling(random))
                start += prompt + completion
                number += 1
        done += 1


def _sampling(random: np.random.Generator) -> dict[str, float | int]:
    """Draw parameters as users send them: many of them greedy, few with penalties."""
    greedy = random.random() < 0.4
    penalised = random.random() < 0.2
    return {
        "temperature": 0.0 if greedy else float(random.uniform(0.2, 1.2)),
        "top_p": 1.0 if greedy else float(random.choice([0.8, 0.9, 0.95, 1.0])),
        "top_k": 0 if greedy else int(random.choice([0, 20, 50])),
        "min_p": 0.0 if greedy else float(random.choice([0.0, 0.05, 0.1])),
        "presence_penalty": float(random.uniform(0.0, 1.0)) if penalised else 0.0,
        "frequency_penalty": float(random.uniform(0.0, 1.0)) if penalised else 0.0,
        "repetition_penalty": float(random.uniform(1.0, 1.3)) if penalised else 1.0,
        "seed": int(random.integers(np.iinfo(np.int64).max)),
    }
