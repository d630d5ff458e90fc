"""One mutant: a small edit of a dangerous line, and the tests that notice it."""

from dataclasses import dataclass
from pathlib import Path


class CatalogueError(Exception):
    """A mutant that does not fit the tree; the text is one line."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A small edit of the product, as a tired person might make it.

    Attributes:
        name: What is broken.
        file: Path below the repository.
        old: Text that occurs exactly once in the file.
        new: Its replacement.
        tests: One to three tests that fail then, the cheapest first, such as `test_claim.py::test_name`.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Edit the file below `root`.

        Raises:
            CatalogueError: There is no such file, or the old text does not occur exactly once.
        """
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if (times := text.count(self.old)) != 1:
            raise CatalogueError(f"{self.name}: the old text occurs {times} times in {self.file}, not once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
