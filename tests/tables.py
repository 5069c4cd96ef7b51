"""What the scripts that renew `docs/quality.md` share: a command's answer, the text to score, tables in their places."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "quality.md"


def told(*arguments):
    """Standard output of a command that succeeds."""
    done = subprocess.run([str(one) for one in arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def records(folder):
    """A file with the decision records one after another: they do not change, so the first of them stay the same text."""
    text = folder / "text"
    found = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    text.write_text("\n".join(one.read_text(encoding="utf-8") for one in found), encoding="utf-8")
    return text


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(script, tables):
    """Puts the tables of a script into the document, each between its marks."""
    document = DOCUMENT.read_text(encoding="utf-8")
    for name, own in tables.items():
        pattern = rf"(<!-- made by tests/{script}: {name} -->\n).*?(<!-- end -->)"
        document, n = re.subn(pattern, lambda found: found[1] + own + found[2], document, flags=re.DOTALL)
        if n != 1:
            sys.exit(f"{DOCUMENT}: expected one place for the table `{name}`, found {n}")
    DOCUMENT.write_text(document, encoding="utf-8")
