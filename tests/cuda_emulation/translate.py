"""CUDA sources as C++ for tests/cuda_emulation: launches, shared memory and nvcc's macro; all else stays as it is.

translate.py ROOT OUT FILE...     ROOT/FILE becomes OUT/FILE, a .cu a .cpp; files that stay equal keep their time
"""

import re
import sys
from pathlib import Path

SHARED = re.compile(
    r"(?P<extern>extern\s+)?__shared__\s+(?:(?:__align__|alignas)\([^)]*\)\s*)?(?P<declaration>[^;={]+);"
)


def matching(text, begin):
    """The index of the bracket that closes the one at `begin`."""
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0:
            return at
    raise ValueError(f"no end of {text[begin : begin + 80]!r}")


def start_of_name(text, end):
    """Where the kernel's name, with its template arguments, begins."""
    at, depth = end, 0
    while at > 0:
        c = text[at - 1]
        depth += (c == ">") - (c == "<")
        if depth == 0 and not (c.isalnum() or c in "_:<"):
            break
        at -= 1
    return at


def launches(text):
    """K<<<grid, block, ...>>>(arguments) becomes a call of emulation::Launch."""
    while (open_at := text.find("<<<")) >= 0:
        close_at = text.index(">>>", open_at)
        paren = close_at + 3
        end = matching(text, paren)
        name_end = len(text[:open_at].rstrip())
        name = start_of_name(text, name_end)
        shape, arguments = text[open_at + 3 : close_at], text[paren : end + 1]
        call = f"::lz::emulation::Launch({shape}, [=] {{ {text[name:name_end]}{arguments}; }})"
        text = text[:name] + call + text[end + 1 :]
    return text


def declared(declaration):
    """The names of `T a[2][3], b`."""
    depth, parts = 0, [""]
    for c in declaration:
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part).group(1) for part in parts]


def shared(match):
    """Each block of a cluster has a struct of its own with what the declaration names."""
    declaration = match["declaration"].strip()
    if match["extern"]:
        kind, name = re.fullmatch(r"(.+?)\s*\b(\w+)\s*\[\s*\]", declaration).groups()
        return f"{kind}* const {name} = static_cast<{kind}*>(::lz::emulation::DynamicShared());"
    names = declared(declaration)
    of, all_of = f"SharedOf_{names[0]}", f"shared_of_{names[0]}"
    return (
        f"struct alignas(128) {of} {{ {declaration}; }}; static {of} {all_of}[::lz::emulation::kMaxCluster]; "
        f"::lz::emulation::BeginShared({all_of}, sizeof({of}));"
        + "".join(f" auto& {name} = {all_of}[::lz::emulation::BlockOfCluster()].{name};" for name in names)
    )


def translated(text):
    text = re.sub(r"//[^\n]*", "", text)
    text = text.replace("__CUDACC__", "LZ_CUDA_EMULATED")
    return SHARED.sub(shared, launches(text))


def main():
    root, out = (Path(p) for p in sys.argv[1:3])
    for name in sys.argv[3:]:
        text = f'#line 1 "{root / name}"\n' + translated((root / name).read_text())
        target = out / re.sub(r"\.cu$", ".cpp", name)
        if not target.exists() or target.read_text() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


if __name__ == "__main__":
    main()
