"""The page in the real Chromium: no errors, nothing fetched, axe, keyboard, narrow, and printed."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import samples
from numabind import plan
from numabind._problems import problem
from numabind._process import Pages, Stray
from numabind._record import replace
from numabind._report.fleet_page import page as fleet_page
from numabind._report.html import page
from test_fleet import evil_fleet
from test_page import EVIL, FINDING, GIB, LARGE, process

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
AXE = importlib.util.find_spec("axe_playwright_python")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromium-driver"),
    pytest.mark.skipif(not importlib.util.find_spec("selenium"), reason="needs selenium"),
    pytest.mark.skipif(AXE is None, reason="needs axe-playwright-python, for its axe.min.js"),
]
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)
OPEN_ALL = "document.querySelectorAll('details').forEach(one => one.open = true)"

# What Tab should stop at, in the order of the document; of the two radio buttons the chosen one.
NUMBER_THE_REACHABLE = """
    const folded = 'details:not([open]) > :not(summary)';
    return [...document.querySelectorAll('a, summary, input:checked, .scroll')]
        .filter(one => !one.closest(folded))
        .map((one, number) => one.dataset.seat = number);
"""
# Which of them has the focus, whether that is outlined, and whether its start is on the screen and
# not below the bar of links (a table's start may be, since it can be higher than the screen).
FOCUS = """
    const here = document.activeElement, box = here.getBoundingClientRect();
    const top = box.height > 300 ? Math.max(box.top, 60) : box.top;
    const above = document.elementFromPoint(box.left + 6, top + 6);
    return [Number(here.dataset.seat ?? -1), getComputedStyle(here).outlineStyle !== 'none',
        here.contains(above)];
"""


def whole() -> str:
    """The issue's machine with everything that a page can have, and a nasty name everywhere."""
    machine = samples.machine(LARGE)
    machine = replace(machine, problems=(problem("nvml-unavailable", EVIL),))
    away = {
        "strays": (Stray(7, "pin_memory", frozenset(range(192))),),
        "pages": Pages(
            "sample", {0: {"huge": GIB}, 3: {"file": GIB}}, 0.5, (0.4, 0.6), 400, swapped=1
        ),
        "problems": (problem("no-package", EVIL, "Move them."),),
    }
    processes = [
        process(i, name=EVIL, devices=(device.pci,), nodes=frozenset({device.node}))
        for i, device in enumerate(machine.devices)
    ]
    processes.append(process(9, **away))
    findings = tuple(replace(FINDING, severity=s) for s in ("serious", "warning", "note"))
    return page(machine, plan(machine, mode="exclusive"), tuple(processes), findings, "today")


def of_shape(shape: str) -> str:
    machine = samples.machine(shape)
    return page(machine, plan(machine))


PAGES = {
    "whole": whole,
    "shared": lambda: of_shape("hgx_h100"),
    "nodes without CPUs": lambda: of_shape("gb200_all_online"),
    "nowhere": lambda: of_shape("all_minus_one"),
    "container": lambda: of_shape("container"),
    "display": lambda: of_shape("display_gpu"),
    "fleet": lambda: fleet_page(evil_fleet(), "today"),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, make in PAGES.items():
        made[name] = folder / f"{name.replace(' ', '-')}.html"
        made[name].write_text(make(), encoding="utf-8")
    return made


def show(
    browser: Chrome, file: Path, width: int = 1440, scheme: str = "light", media: str = ""
) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    browser.get(file.as_uri())


def axe(browser: Chrome) -> list[str]:
    """What axe-core, with all its rules but the experimental ones, calls a violation."""
    assert AXE is not None and AXE.origin is not None
    browser.execute_script(Path(AXE.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    found: dict[str, Any] = browser.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {resultTypes: ['violations']}).then(done, e => done({error: `${e}`}))"
    )
    assert "error" not in found, found
    assert len(found["passes"]) > 20
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 420])
def test_axe_finds_no_violation(
    browser: Chrome, files: dict[str, Path], name: str, scheme: str, width: int
) -> None:
    show(browser, files[name], width, scheme)
    browser.execute_script(OPEN_ALL)
    assert axe(browser) == []


def test_both_schemes_are_really_shown(browser: Chrome, files: dict[str, Path]) -> None:
    seen = []
    for scheme in ("light", "dark"):
        show(browser, files["whole"], scheme=scheme)
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        seen.append([int(part) for part in colour[4:-1].split(",")])
    assert min(seen[0]) > 200
    assert max(seen[1]) < 60


@pytest.mark.parametrize("name", PAGES)
def test_it_says_nothing_on_the_console_and_fetches_nothing(
    browser: Chrome, files: dict[str, Path], name: str
) -> None:
    browser.get("about:blank")
    browser.get_log("browser"), browser.get_log("performance")
    show(browser, files[name])
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert asked == {files[name].as_uri()}
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.execute_script("return document.compatMode") == "CSS1Compat"


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [1440, 768, 420, 320])
def test_the_page_does_not_scroll_sideways(
    browser: Chrome, files: dict[str, Path], name: str, width: int
) -> None:
    show(browser, files[name], width)
    browser.execute_script(OPEN_ALL)
    wide = "return document.documentElement.scrollWidth"
    assert browser.execute_script(wide) <= width


def test_the_keyboard_reaches_everything_in_order(browser: Chrome, files: dict[str, Path]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    show(browser, files["whole"])

    def press(*keys: str) -> None:
        ActionChains(browser).send_keys(*keys).perform()

    expected = browser.execute_script(NUMBER_THE_REACHABLE)
    assert len(expected) == 20
    reached = []
    for _ in expected:
        press(Keys.TAB)
        reached.append(browser.execute_script(FOCUS))
    assert reached == [[seat, True, True] for seat in expected]


def test_the_keyboard_opens_switches_and_skips(browser: Chrome, files: dict[str, Path]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, files["whole"])
    first = browser.find_element(By.TAG_NAME, "summary")
    for key, is_open in ((Keys.ENTER, True), (Keys.SPACE, False)):
        first.send_keys(key)
        assert browser.execute_script("return document.querySelector('details').open") is is_open
    shown = "return getComputedStyle(document.querySelector('.cores i'), '::before').content"
    assert browser.execute_script(shown) == "none"
    browser.find_element(By.ID, "ranks").send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script(shown) == '"0"'
    show(browser, files["whole"])
    ActionChains(browser).send_keys(Keys.TAB, Keys.ENTER).perform()
    assert browser.execute_script("return document.activeElement.id") == "main"


def test_paper_shows_what_is_folded_and_is_light(browser: Chrome, files: dict[str, Path]) -> None:
    show(browser, files["whole"], scheme="dark", media="print")
    heights = browser.execute_script(
        "return [...document.querySelectorAll('details')].map(e => e.lastElementChild)"
        ".map(e => e.checkVisibility() ? e.getBoundingClientRect().height : 0)"
    )
    assert len(heights) == 10
    assert min(heights) > 5
    assert not browser.execute_script("return document.querySelector('nav').checkVisibility()")
    colour = browser.execute_script("return getComputedStyle(document.body).color")
    assert max(int(part) for part in colour[4:-1].split(",")) < 60


@pytest.mark.parametrize("name", PAGES)
def test_it_prints(browser: Chrome, files: dict[str, Path], name: str) -> None:
    show(browser, files[name])
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    data = base64.b64decode(printed["data"])
    assert data.startswith(b"%PDF-")
    assert 2 <= data.count(b"/Type /Page\n") <= 12
