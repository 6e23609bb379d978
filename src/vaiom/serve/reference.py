"""The page `/docs` of a service: each route with what it takes, what it refuses, and a command.

Enters: the OpenAPI document. Leaves: one HTML page that loads nothing from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from shlex import quote
from typing import Any

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Routes of VAIOM {version}</title>
<link rel="stylesheet" href="/theme.css">
</head>
<body>
<main>
<h1>Routes of VAIOM {version}</h1>
<p>{summary} The same for programs: <a href="/openapi.json">/openapi.json</a>.
Where the service asks for keys, add <code>-H 'Authorization: Bearer KEY'</code>.</p>
{routes}
</main>
</body>
</html>
"""


def describe_routes(document: Mapping[str, Any], address: str) -> str:
    """The page; commands ask the service at `address`."""
    routes = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts = _describe(document, address, path, method, operation)
            routes.append("<section>\n" + "\n".join(parts) + "\n</section>")
    about = document["info"]
    return _PAGE.format(
        version=escape(about["version"]),
        summary=escape(about["summary"]),
        routes="\n".join(routes),
    )


def _describe(
    document: Mapping[str, Any],
    address: str,
    path: str,
    method: str,
    operation: Mapping[str, Any],
) -> Iterator[str]:
    """One route: what it does, its parameters, its command and its refusals."""
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    yield f"<p>{escape(' '.join(operation.get('description', '').split()))}</p>"
    parameters = operation.get("parameters", [])
    if parameters:
        yield "<ul>"
        for each in parameters:
            needed = "" if each.get("required") else ", may be left out"
            said = escape(each.get("description", ""))
            yield f"<li><code>{escape(each['name'])}</code> ({each['in']}{needed}) {said}</li>"
        yield "</ul>"
    words = ["curl", address + path.replace("{symbol}", "EURUSD")]
    needed_in_query = [each for each in parameters if each["in"] == "query" and each["required"]]
    if needed_in_query:
        words[-1] += "?" + "&".join(f"{each['name']}=..." for each in needed_in_query)
    if method != "get":
        words += ["-X", method.upper()]
    example = _example_of(document, operation)
    if example is not None:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(example)]
    yield f"<pre><code>{escape(' '.join(quote(word) for word in words))}</code></pre>"
    refusals = [
        f"{status}: {answer['description']}"
        for status, answer in operation["responses"].items()
        if status.startswith(("4", "5"))
    ]
    if refusals:
        yield f"<p>Refused with {escape(' '.join(refusals))}</p>"


def _example_of(document: Mapping[str, Any], operation: Mapping[str, Any]) -> Any:
    """The first example of a body; None where there is no body."""
    if "requestBody" not in operation:
        return None
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rsplit("/", 1)[-1]
    return document["components"]["schemas"][name]["examples"][0]
