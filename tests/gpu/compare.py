"""How far two files of logits are apart.

In: two `.npy` files of single-precision numbers, as `fusebox logits -o` writes them, and how far they may be apart.
Out: the relative error, as the tests of the processor count it; exit code 1 where it is larger, or no number.
"""

import array
import math
import sys


def numbers(path):
    """The numbers behind the header of a file."""
    with open(path, "rb") as file:
        content = file.read()
    start = 10 + int.from_bytes(content[8:10], "little")
    return array.array("f", content[start:])


def main():
    found, expected, most = numbers(sys.argv[1]), numbers(sys.argv[2]), float(sys.argv[3])
    if len(found) != len(expected):
        sys.exit(f"{len(found)} numbers instead of {len(expected)}")
    mean = math.fsum(expected) / len(expected)
    variance = math.fsum((x - mean) ** 2 for x in expected)
    square = math.fsum((a - b) ** 2 for a, b in zip(found, expected))
    error = math.sqrt(square / variance)
    print(f"relative error {error:.2e}, at most {most:.0e} is expected")
    sys.exit(0 if error <= most else 1)


main()
