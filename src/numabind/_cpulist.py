"""The kernel's two ways to write a set of CPUs or nodes, to `frozenset[int]` and back.

Lists are "0-3,8" (Documentation/admin-guide/kernel-parameters.rst, "cpu lists"), masks are
comma-separated 32-bit hexadecimal words, most significant first: "ff,00000000" is CPUs 32-39
(lib/bitmap.c, %*pbl and %*pb). Both of the kernel's spellings of the empty set are read: an empty
line and a mask of zeros.
"""

from __future__ import annotations

# Far above any kernel's NR_CPUS (8192) and MAX_NUMNODES (1024); a larger number is a broken file,
# and expanding "0-4000000000" would take all memory.
LARGEST_ID = 1 << 17


def parse_list(text: str) -> frozenset[int]:
    """Read "0-3,8" as {0, 1, 2, 3, 8}; "" is the empty set.

    Raises ValueError, naming the part at fault, for anything that the kernel would not print.
    """
    found: set[int] = set()
    text = text.strip()
    if not text:
        return frozenset()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ValueError(f"{part!r} is not a number or a range such as 0-3")
        low = int(first)
        high = int(last) if dash else low
        if high < low:
            raise ValueError(f"the range {part!r} runs backwards")
        if high > LARGEST_ID:
            raise ValueError(f"{high} is larger than any CPU or node number ({LARGEST_ID})")
        found.update(range(low, high + 1))
    return frozenset(found)


def parse_mask(text: str) -> frozenset[int]:
    """Read "f,00000003" as {0, 1, 32, 33, 34, 35}; "" is the empty set. ValueError as above."""
    text = text.strip()
    if text[:2] in ("0x", "0X"):
        text = text[2:]
    if not text:
        return frozenset()
    words = text.split(",")
    if len(words) * 32 > LARGEST_ID:
        raise ValueError("the mask is longer than any machine's")
    bits = 0
    for word in words:
        if not 0 < len(word) <= 8 or not all(c in "0123456789abcdefABCDEF" for c in word):
            raise ValueError(f"{word!r} is not a word of a hexadecimal mask")
        bits = bits << 32 | int(word, 16)
    # Walking the digits keeps this linear; testing each bit of one large integer is not.
    digits = f"{bits:b}"[::-1]
    return frozenset(i for i, digit in enumerate(digits) if digit == "1")


def format_list(ids: frozenset[int] | set[int] | tuple[int, ...]) -> str:
    """Write {0, 1, 2, 3, 8} as "0-3,8", sorted, as the kernel does; the empty set is ""."""
    parts: list[str] = []
    ordered = sorted(ids)
    start = 0
    for here in range(1, len(ordered) + 1):
        if here == len(ordered) or ordered[here] != ordered[here - 1] + 1:
            low, high = ordered[start], ordered[here - 1]
            parts.append(str(low) if low == high else f"{low}-{high}")
            start = here
    return ",".join(parts)


def format_mask(ids: frozenset[int] | set[int]) -> str:
    """Write {0, 32} as "1,00000001"; the empty set is "0"."""
    bits = 0
    for i in ids:
        bits |= 1 << i
    words: list[str] = []
    while True:
        word, bits = bits & 0xFFFFFFFF, bits >> 32
        if not bits:
            words.append(f"{word:x}")
            return ",".join(reversed(words))
        words.append(f"{word:08x}")


def _is_number(text: str) -> bool:
    # str.isdigit alone also takes "²" and other scripts' digits; int() refuses the first.
    return text.isascii() and text.isdigit() and len(text) <= 9
