"""What a release is made of: a CycloneDX document of the package and everything that it needs to
run.

Enters: the name of an installed package. Leaves: JSON on stdout or in a file; the same environment
gives the same bytes. The standard library alone: `python tools/sbom.py --out dist/vaiom.cdx.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

SPEC_VERSION = "1.5"

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def bill_of_materials(package: str, extras: frozenset[str]) -> dict[str, Any]:
    """The document: the package, all that it needs with these extras, and who needs whom."""
    packages: dict[str, Distribution] = {}
    needs: dict[str, list[str]] = {}
    waiting = [(package, extras)]
    while waiting:
        name, with_extras = waiting.pop()
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # not needed on this platform, or not installed
        key = _key(installed.name)
        if key in packages and not with_extras:
            continue
        packages[key] = installed
        required = list(_requirements(installed, with_extras))
        needs[key] = sorted({*needs.get(key, []), *required})
        waiting += [(other, frozenset()) for other in required if other not in packages]
    root = _key(package)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {"component": _component(packages[root], "application")},
        "components": [
            _component(packages[key], "library") for key in sorted(packages) if key != root
        ],
        "dependencies": [
            {
                "ref": _purl(packages[key]),
                "dependsOn": [_purl(packages[other]) for other in needs[key] if other in packages],
            }
            for key in sorted(packages)
        ],
    }


def _requirements(package: Distribution, extras: frozenset[str]) -> Iterator[str]:
    """The names of the packages that it requires with these extras."""
    for text in package.requires or []:
        name, extra = _NAME.match(text), _EXTRA.search(text)
        if name and (extra is None or extra[1] in extras):
            yield _key(name[0])


def _component(package: Distribution, kind: str) -> dict[str, Any]:
    licence = package.metadata["License-Expression"] or package.metadata["License"]
    return {
        "type": kind,
        "bom-ref": _purl(package),
        "name": package.name,
        "version": package.version,
        "purl": _purl(package),
        # Some packages put their whole licence text here: a name has one short line.
        **(
            {"licenses": [{"license": {"name": licence}}]} if licence and len(licence) < 100 else {}
        ),
    }


def _purl(package: Distribution) -> str:
    return f"pkg:pypi/{_key(package.name)}@{package.version}"


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Write the bill of materials of an installed package."
    )
    parser.add_argument("--package", default="vaiom")
    parser.add_argument(
        "--extra", action="append", default=[], help="an extra that the release ships with"
    )
    parser.add_argument("--out", type=Path, help="file to write; by default, stdout")
    options = parser.parse_args()
    text = json.dumps(bill_of_materials(options.package, frozenset(options.extra)), indent=2) + "\n"
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
