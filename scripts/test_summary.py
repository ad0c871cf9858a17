"""Adds up JUnit XML files of ctest and pytest: `N passed, N failed, N skipped`. Exit 1 if a test failed or none ran."""

import sys
import xml.etree.ElementTree as ET


def count(path: str) -> tuple[int, int, int]:
    passed = failed = skipped = 0
    for case in ET.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            failed += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(paths: list[str]) -> int:
    passed, failed, skipped = (sum(column) for column in zip((0, 0, 0), *map(count, paths), strict=True))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
