"""The container's files say what the service understands, and its dashboard asks for what /metrics
has.
"""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from pathlib import Path
from typing import Any

import yaml
from serve_runs import SYMBOLS, TinyRun, config_of, in_process
from typer.main import get_command

from vaiom.cli.main import app
from vaiom.run import find_run

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "container.py"))
BUILD, IMAGE = TOOL["read_stages"]((ROOT / "Containerfile").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
MONITORING = ROOT / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana" / "vaiom.json").read_text(encoding="utf-8"))
SERVED = COMPOSE["services"]["vaiom"]


def check_command(words: list[str]) -> dict[str, str]:
    """Options by name, all of which `vaiom serve` has."""
    name, run, *rest = words
    assert name == "serve"
    assert find_run(Path(run)).is_dir()
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    known = {option for each in get_command(app).commands["serve"].params for option in each.opts}
    assert options.keys() <= known
    return options


def test_the_image_serves_without_root_and_keeps_all_in_one_volume() -> None:
    options = check_command(json.loads(TOOL["the_one"](IMAGE, "CMD")))
    volume = TOOL["the_one"](IMAGE, "VOLUME")
    assert {Path(options[name]).parts[:2] for name in ("--state", "--ledger")} == {
        Path(volume).parts
    }
    user = TOOL["the_one"](IMAGE, "USER")
    assert 0 not in map(int, user.split(":"))
    assert "/healthz" in TOOL["the_one"](IMAGE, "HEALTHCHECK")
    assert [name for name, _ in IMAGE].index("USER") > max(
        at for at, (name, _) in enumerate(IMAGE) if name == "RUN"
    )


def test_the_image_installs_the_tested_versions_from_files_that_its_context_has() -> None:
    installs = [words for name, words in BUILD if name == "RUN" and "pip install" in words]
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in words for words in installs)
    copied = {each for name, words in BUILD if name == "COPY" for each in words.split()[:-1]}
    assert all((ROOT / each).exists() for each in copied)
    assert copied == {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    }


def test_the_composed_service_is_the_images_on_a_read_only_root() -> None:
    image, composed = (
        check_command(json.loads(TOOL["the_one"](IMAGE, "CMD"))),
        check_command(SERVED["command"]),
    )
    assert composed == {**image, "--allow-host": "vaiom"}  # Prometheus calls it by its name
    assert SERVED["user"] == TOOL["the_one"](IMAGE, "USER")
    assert SERVED["volumes"] == [f"state:{TOOL['the_one'](IMAGE, 'VOLUME')}"]
    assert SERVED["healthcheck"]["test"][1:] == json.loads(
        TOOL["the_one"](IMAGE, "HEALTHCHECK").partition("CMD ")[2]
    )
    assert (ROOT / SERVED["build"]["dockerfile"]).is_file()
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        for source, *_ in (volume.split(":") for volume in service["volumes"]):
            assert source in COMPOSE["volumes"] or (ROOT / source).is_file(), source


def test_prometheus_and_grafana_find_each_other() -> None:
    scraped = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == ["vaiom:8000"]
    (source,) = yaml.safe_load((MONITORING / "grafana" / "datasource.yml").read_text())[
        "datasources"
    ]
    assert source["url"].split("/")[2].split(":")[0] in COMPOSE["services"]
    assert {
        each["datasource"]["uid"] for panel in DASHBOARD["panels"] for each in panel["targets"]
    } == {source["uid"]}
    (provider,) = yaml.safe_load((MONITORING / "grafana" / "dashboards.yml").read_text())[
        "providers"
    ]
    assert any(
        f":{provider['options']['path']}/" in each
        for each in COMPOSE["services"]["grafana"]["volumes"]
    )


def test_every_metric_of_the_dashboard_is_on_a_real_page(tiny: TinyRun, tmp_path: Path) -> None:
    async def page() -> str:
        config = config_of(
            tiny, tmp_path / "state", bars=tiny.bars, ledger=tmp_path / "ledger.jsonl"
        )
        async with in_process(config) as (client, _):
            body: dict[str, Any] = {"bars": tiny.later[SYMBOLS[0]][:1]}
            assert (
                await client.post(f"/v1/assets/{SYMBOLS[0]}/bars", json=body)
            ).status_code == 200
            return str((await client.get("/metrics")).text)

    served: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*?)\})? \S+$", asyncio.run(page()), re.MULTILINE):
        served.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    asked = [each for panel in DASHBOARD["panels"] for each in panel["targets"]]
    assert len(asked) > len(DASHBOARD["panels"])
    for each in asked:
        names = re.findall(r"vaiom_\w+", each["expr"])
        assert names
        assert set(names) <= served.keys(), each["expr"]
        labels = set().union(*(served[name] for name in names))
        grouped = {
            label
            for found in re.findall(r"by \((.*?)\)", each["expr"])
            for label in found.split(", ")
        }
        assert grouped | set(re.findall(r"{{(\w+)}}", each["legendFormat"])) <= labels, each
