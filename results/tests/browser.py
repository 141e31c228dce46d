"""A headless Chromium for tests and measurements of the HTML report: Debian's packages chromium and chromium-driver."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_READY_S = 60.0  # a page of a million cases on a busy machine


def missing() -> str:
    """Why there is no browser here, or "" if there is one."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not found: apt-get install chromium chromium-driver" if absent else ""


@contextmanager
def chromium(*, width: int = 1280, height: int = 800, dark: bool = False) -> Iterator[Any]:
    """A selenium driver. Its log has every message of the console, a refused script or style among them."""
    from selenium import webdriver  # noqa: PLC0415  slow tests and measurements only
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        if dark:
            feature = {"name": "prefers-color-scheme", "value": "dark"}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        yield driver
    finally:
        driver.quit()


def visit(driver: Any, file: Path, place: str = "#/") -> None:
    """Load the report anew at a place of its own ("#/cases") and wait until its data is there."""
    driver.get("about:blank")
    driver.get(f"{file.resolve().as_uri()}{place}")
    wait_for(driver, "document.documentElement.dataset.ready === 'true'")


def wait_for(driver: Any, condition: str, *, seconds: float = _READY_S) -> None:
    """Wait until an expression of JavaScript is true."""
    end = time.monotonic() + seconds
    while not driver.execute_script(f"return Boolean({condition})"):
        if time.monotonic() > end:
            raise TimeoutError(f"{condition!r} is not true after {seconds} s, at {driver.current_url}")
        time.sleep(0.03)
