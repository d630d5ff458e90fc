"""Figures on the structure: how much a reader has to keep in mind. `make figures` prints them."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
SHORT = 80


def modules() -> Iterator[tuple[str, Path]]:
    for top, package in (("drain", "drain"), ("workers", "drain.workers"), ("pipeline", "drain.pipeline")):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT / top).with_suffix("").parts
            yield ".".join((package, *parts)).removesuffix(".__init__"), path


def is_core(name: str) -> bool:
    return not name.startswith(("drain.pipeline", "drain.contrib"))


def words_and_lines(text: str) -> tuple[int, int]:
    """Count words of docstrings and whole-line comments, and all other non-empty lines."""
    lines = text.splitlines()
    prose: dict[int, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node) is not None
        ):
            doc = node.body[0]
            prose |= {number: lines[number - 1] for number in range(doc.lineno, (doc.end_lineno or 0) + 1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            prose[token.start[0]] = token.line
    code = [line for number, line in enumerate(lines, 1) if line.strip() and number not in prose]
    return sum(len(re.findall(r"\w+", line)) for line in prose.values()), len(code)


def main() -> None:
    files = dict(modules())
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    lines = {name: text.count("\n") for name, text in texts.items()}
    graph = grimp.build_graph("drain", exclude_type_checking_imports=True, cache_dir=None)

    def room(name: str) -> str:
        return ".".join(name.split(".")[:2])

    core = {
        name for name in files if is_core(name) and name != "drain" and not name.startswith("drain.workers")
    }
    arrows = {
        (room(name), room(other))
        for name in core
        for other in graph.find_modules_directly_imported_by(name) & core
        if room(name) != room(other)
    }
    importers = Counter(
        other for name in files for other in graph.find_modules_directly_imported_by(name) if other in files
    )
    torn = [name for name in files if lines[name] < SHORT and importers[name] == 1]
    counted = [words_and_lines(text) for text in texts.values()]
    docs = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    prose = " ".join(path.read_text(encoding="utf-8") for path in docs)
    everything = prose + " ".join(texts.values())
    for figure, value in {
        "lines of the core (drain without contrib, and workers)": sum(
            lines[name] for name in files if is_core(name)
        ),
        "lines of the product": sum(lines.values()),
        "rooms in drain, without contrib and workers": len({room(name) for name in core}),
        "arrows between them": len(arrows),
        f"modules under {SHORT} lines with one importer": len(torn),
        "words of docstrings and comments per other line": round(
            sum(words for words, _ in counted) / sum(code for _, code in counted), 2
        ),
        '"is no", "is none" per 100,000 words': round(
            len(re.findall(r"\b(?:is|are) (?:no|none)\b", everything)) / len(everything.split()) * 100_000
        ),
        "words of the docs": len(prose.split()),
    }.items():
        print(f"{value:>10,}  {figure}")


if __name__ == "__main__":
    main()
